// The keys of Axolotl, LLaMA-Factory, TRL with transformers, PEFT and DeepSpeed, and
// what they are here. The one table for "did you mean" and for `init --from`. Constant data; any
// thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace longshore {

// OtherKeyUse says what `init --from` does with a key.
enum class OtherKeyUse : uint8_t {
  kSame,      // takes the value as it is
  kComputed,  // has code for it
  kNeedless,  // leaves it out: it does not change what is trained
  kMissing,   // reports it: Longshore has nothing for it
  kRefused,   // ends: without it the run would be another
};

struct OtherKey {
  std::string_view name;
  std::string_view key;  // full name in the run file; empty if there is none
  OtherKeyUse use = OtherKeyUse::kComputed;
  std::string_view why = "";    // kNeedless, kMissing and kRefused: the reason
  std::string_view usual = "";  // the other trainer's default as JSON; empty: it is off
};

// Null if the name is unknown.
const OtherKey* find_other_key(std::string_view name);

}  // namespace longshore
