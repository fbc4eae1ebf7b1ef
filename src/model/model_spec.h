// Model spec: the units and parameters of a decoder from its ArchSpec and the tensors of its files.
// Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/arch_spec.h"
#include "model/families.h"
#include "shard/unit_spec.h"

namespace longshore {

// A tensor as a model file's header tells it.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// A parameter of a unit and the part it plays there.
struct ModuleParameter {
  Module module = Module::kTokens;
  bool bias = false;
  ParamSpec spec;
  int64_t expert = -1;  // where each expert has parameters of its own
};

// Attention with its norms and what it adds to the hidden state, or the MLP, or router and experts,
// with the same; a block is the one and then the other.
enum class BlockPart : uint8_t { kWhole, kAttention, kMlp };

// The parameters of each unit, in the unit's order. `prefix` is one of the family's prefixes. The
// head's list holds its own parameters only; a tied head borrows the embedding's first one.
std::vector<ModuleParameter> embedding_parameters(const ArchSpec& arch, NameTable::Prefix prefix);
std::vector<ModuleParameter> block_parameters(const ArchSpec& arch, NameTable::Prefix prefix,
                                              int64_t layer, BlockPart part = BlockPart::kWhole);
std::vector<ModuleParameter> head_parameters(const ArchSpec& arch, NameTable::Prefix prefix,
                                             bool tied);

// `arch` with MoeSpec::fused as the files have it; without files it stays as the family's.
ArchSpec spelled_as(ArchSpec arch, std::span<const FileTensor> files);

// Units embedding, block.0 .. block.n-1, head. `files` are the tensors of the model's files; empty
// for a model without files (random init). The head is tied when config.json says so and the files
// hold no head of their own. DataError with every tensor that is missing, has another shape, or is
// neither a parameter nor skipped by the family's rules.
ModelSpec make_model_spec(const ArchSpec& arch, std::span<const FileTensor> files);

// The class of each unit, in the names of transformers: "Embedding", "LlamaDecoderLayer", ...,
// "Head". Halves of a block are of the block's class.
std::vector<std::string> unit_classes(const ArchSpec& arch, const ModelSpec& model);

// True for a tensor that the family's files may hold but that is no parameter of this model: a
// buffer, or another tower's.
bool is_skipped_tensor(const ArchSpec& arch, std::string_view name);

// Marks the parameters that match one of the globs (*, ?, [..]) as frozen. ConfigError for globs
// that match nothing; `where` ("run.toml:12:1") leads the message.
void freeze_parameters(ModelSpec& model, std::span<const std::string> globs,
                       const std::string& where);

}  // namespace longshore
