// model_spec: the units and parameters of a decoder, from its ArchSpec and the tensors of its
// files. Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/families/families.h"
#include "model/parameters/unit_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

// A tensor as described in the header of a model file.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Returns the adapted matrices, by name. `model` has whole units.
std::map<std::string, AdaptedPart> adapted_matrices(const ArchSpec& arch, const ModelSpec& model);

// Returns `arch` with MoeSpec::fused as in the files; without files it stays unchanged.
ArchSpec spelled_as(ArchSpec arch, std::span<const FileTensor> files);

// Makes the units embedding, those of the inputs of layers, block.0 .. block.n-1, head. `files` are
// the tensors of the model's files; empty for random init. The head is tied if config.json says so,
// or in a wrapper says nothing, and the files hold no head. Throws DataError with every tensor that
// is missing, has another shape, or is neither a parameter nor skipped by the family's rules.
ModelSpec make_model_spec(const ArchSpec& arch, std::span<const FileTensor> files);

// Returns each unit's class in the names of transformers: "Embedding" for the first, "Head" for the
// last, "LayerInputs" for those that make the inputs of layers, the block's class
// ("LlamaDecoderLayer") for all others, cut or whole.
std::vector<std::string> unit_classes(const ArchSpec& arch, const ModelSpec& model);

// Returns whether the tensor is of layers that predict further tokens (MTP), which no run trains.
bool predicts_further_tokens(const ArchSpec& arch, std::string_view name);

// Returns true for a tensor that the family's files may hold but that is not a parameter of this
// model: a buffer or a tensor of another tower.
bool is_skipped_tensor(const ArchSpec& arch, std::string_view name);

// Freezes the parameters that match one of the globs (*, ?, [..]); a glob after "!" takes those
// that it matches out again, so that the last one that matches decides. Throws ConfigError for
// globs that match nothing; `where` ("run.toml:12:1") starts the message.
void freeze_parameters(ModelSpec& model, std::span<const std::string> globs,
                       const std::string& where);

}  // namespace longshore
