// The keys of Axolotl, LLaMA-Factory, TRL with transformers, PEFT and DeepSpeed, and their
// equivalents in a run file. The one table for "did you mean" and for `init --from`. Constant data;
// any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace longshore {

// OtherKeyUse says what `init --from` does with a key.
enum class OtherKeyUse : uint8_t {
  kSame,      // copies the value
  kComputed,  // has code that converts the value
  kNeedless,  // omits the key, which does not change what is trained
  kMissing,   // reports the key, for which Longshore has no equivalent
  kRefused,   // ends with an error, because ignoring the key would change the run
};

struct OtherKey {
  std::string_view name;
  std::string_view key;  // full name in the run file; empty: no equivalent
  OtherKeyUse use = OtherKeyUse::kComputed;
  std::string_view why = "";    // kNeedless, kMissing and kRefused: the reason
  std::string_view usual = "";  // the other trainer's default as JSON; empty: it is off
};

// Null if the name is unknown.
const OtherKey* find_other_key(std::string_view name);

}  // namespace longshore
