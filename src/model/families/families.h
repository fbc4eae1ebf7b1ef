// families: the supported Hugging Face model types, the conversion of their config.json to an
// ArchSpec, and their tensor names. A new family is one row in families.cpp. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/families/arch_spec.h"

namespace longshore {

// A family's tensor names. "{i}" stands for the block's number and "{e}" for the expert's;
// ".weight" and ".bias" are appended. An empty name means that the family lacks the module.
struct NameTable {
  std::array<std::string_view, kModuleCount> modules;
  // The router's name if experts are fused and the name then differs.
  std::string_view fused_router = "";
  struct Prefix {
    std::string_view body;       // prefix of everything but the head
    std::string_view head = "";  // prefix of the head
  };
  // The prefixes that a file may use; init-model writes the first.
  std::vector<Prefix> prefixes;
  // The class of a block in transformers.
  std::string_view block_class;
  // Globs, after the prefix, of tensors that are not parameters: buffers of older versions.
  std::vector<std::string_view> skipped;
  // The files may hold one layer more, which predicts a second token; it stays unchanged.
  bool extra_layer = false;
  // Globs of tensors of a wrapper's other towers, which stay unchanged.
  std::vector<std::string_view> other_towers;
  // Returns the prefix of the modules of transformers: a wrapper's last.
  std::string_view published_body() const {
    return (other_towers.empty() ? prefixes.front() : prefixes.back()).body;
  }
};

// How PEFT adapts the experts of a family.
enum class ExpertAdapters : uint8_t {
  kNone,
  kNamed,  // where a target names them
  // As the single matrices that they were in transformers 4: "all-linear" includes them, and gate
  // and up have the rank of both.
  kLinear,
};

// Reads config.json; messages name `path`. Throws ConfigError with every problem: an unknown
// model_type (with the supported list), a missing key, a value out of bounds, or an unknown key
// that would change the numbers.
ArchSpec read_arch_spec(const Json& config, const std::string& path);

// Returns the names of a supported family; any other family is a CheckFailure.
const NameTable& name_table(std::string_view family);

// Returns kNone for what is no supported family.
ExpertAdapters expert_adapters(std::string_view family);

// Returns the families whose files may hold experts in MXFP4.
std::vector<std::string> mxfp4_families();

// Returns "llama, mistral, qwen2, ...".
std::string supported_families();

}  // namespace longshore
