// unit_parameters: the parameters of each unit of a decoder by module and role, from its ArchSpec.
// Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/families/families.h"
#include "shard/unit_spec.h"

namespace longshore {

// ParameterRole says what a parameter is to its module. LoRA's A and B and DoRA's magnitude belong
// to the module that they adapt.
enum class ParameterRole : uint8_t { kWeight, kBias, kLoraA, kLoraB, kLoraMagnitude };
inline constexpr size_t kRoleCount = static_cast<size_t>(ParameterRole::kLoraMagnitude) + 1;

// The adapter of a matrix: that of `module`, whose product with `scaling` is added. An expert's own
// matrix has the outputs from `first_output` on of `expert` in the adapter of all experts.
struct AdaptedPart {
  std::string module;
  double scaling = 1.0;
  int64_t expert = 0;
  int64_t first_output = 0;
  bool transposed = false;  // the stored matrix is [in, out]
  bool lookup = false;      // of an embedding, whose inputs are tokens; A and B have other names
};

// A parameter of a unit and its module.
struct ModuleParameter {
  Module module = Module::kTokens;
  ParameterRole role = ParameterRole::kWeight;
  ParamSpec spec;
  int64_t expert = -1;  // -1 unless it belongs to a single expert
  std::optional<AdaptedPart> adapted = {};
  double scaling = 1.0;  // of the product of the adapter whose A this is
};

// A block is attention, or another mixer, with its norms and residual, followed by the MLP (or
// router and experts) with its norms and residual; some layers are one of the two alone
// (LayerSpec). A unit may be the whole block or one half.
enum class BlockPart : uint8_t { kWhole, kAttention, kMlp };

// Return the parameters of each unit, in the unit's order. `prefix` is one of the family's
// prefixes. A tied head's list lacks the table, the embedding's first parameter.
std::vector<ModuleParameter> embedding_parameters(const ArchSpec& arch, NameTable::Prefix prefix);
// The inputs of layers have two units: their table, and what makes them from it and the embedding.
std::vector<ModuleParameter> input_table_parameters(const ArchSpec& arch, NameTable::Prefix prefix);
std::vector<ModuleParameter> input_parameters(const ArchSpec& arch, NameTable::Prefix prefix);
std::vector<ModuleParameter> block_parameters(const ArchSpec& arch, NameTable::Prefix prefix,
                                              int64_t layer, BlockPart part = BlockPart::kWhole);
std::vector<ModuleParameter> head_parameters(const ArchSpec& arch, NameTable::Prefix prefix,
                                             bool tied);

// Returns the name of a weight or bias in the files. `fused` says how the files hold experts;
// `expert` is -1 for what is not of one expert.
std::string parameter_name(const ArchSpec& arch, bool fused, NameTable::Prefix prefix,
                           Module module, bool bias, int64_t layer, int64_t expert);

}  // namespace longshore
