// Families: which Hugging Face model types there are, how their config.json becomes an ArchSpec and
// what their tensors are called. A new family is one row in families.cpp. Pure functions.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/arch_spec.h"

namespace longshore {

// The parts of a decoder that have parameters.
enum class Module : uint8_t {
  kTokens,
  kPositions,
  kAttentionNorm,
  kAttentionPostNorm,
  kQuery,
  kKey,
  kValue,
  kQkv,
  kQueryNorm,
  kKeyNorm,
  kOutput,
  kMlpNorm,
  kMlpPostNorm,
  kGate,
  kUp,
  kGateUp,
  kDown,
  kSinks,
  kRouter,
  kExpertGate,  // of one expert each
  kExpertUp,
  kExpertDown,
  kExpertsGateUp,  // of all experts; these two have neither ".weight" nor ".bias"
  kExpertsDown,
  kSharedGate,  // of the expert for all tokens
  kSharedUp,
  kSharedDown,
  kSharedSwitch,
  kFinalNorm,
  kHead,
};
inline constexpr size_t kModuleCount = static_cast<size_t>(Module::kHead) + 1;

// Where a family keeps its tensors. "{i}" stands for the block's number; ".weight" and ".bias" are
// added; "{e}" for the expert's. Empty: the family has no such part.
struct NameTable {
  std::array<std::string_view, kModuleCount> modules;
  // The router's name beside fused experts, where it is another.
  std::string_view fused_router = "";
  struct Prefix {
    std::string_view body;       // of everything but the head
    std::string_view head = "";  // of the head
  };
  // Where a file may keep the model. The first one is written by init-model.
  std::vector<Prefix> prefixes;
  // The class of a block, in the names of transformers.
  std::string_view block_class;
  // Globs, after the prefix, of tensors that hold no parameter: buffers of older versions.
  std::vector<std::string_view> skipped;
  // Globs of tensors of the other towers of a wrapper: they stay as they are.
  std::vector<std::string_view> other_towers;
};

// Reads config.json. `path` is named in messages. ConfigError with every problem found: an unknown
// model_type (with the supported list), a missing key, a value out of bounds, a key that would
// change the numbers in a way this program does not know.
ArchSpec read_arch_spec(const Json& config, const std::string& path);

// The names of a supported family; a family that is not in the table is a CheckFailure.
const NameTable& name_table(std::string_view family);

// "llama, qwen2, ...".
std::string supported_families();

}  // namespace longshore
