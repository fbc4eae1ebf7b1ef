// unit_cut: decides which units of a decoder are cut into smaller ones, and makes these units. Pure
// functions, no LibTorch.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/parameters/unit_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

// unit_groups: groups consecutive units of a model by the user's policy. Pure functions, no
// LibTorch.

// The policy that defines units: consecutive units of the model may be merged, and blocks may be
// cut (model/unit_cut.h).
struct UnitPolicy {
  enum class Kind : uint8_t {
    kBlock,          // the model's own units
    kHalf,           // the same, with every block cut in two
    kPiece,          // like kHalf, with embedding, head and experts in pieces
    kClasses,        // units of these classes stay alone; others merge with their neighbours
    kMinParameters,  // merges consecutive units until they have that many parameters
    kGroups,         // lists of the model's units or parts of blocks; others stay alone
  };
  Kind kind = Kind::kBlock;
  std::vector<std::string> classes;
  int64_t min_parameters = 0;
  int64_t rows = 0;  // used by kPiece; 0: pieces as large as the largest other unit
  std::vector<std::vector<std::string>> groups;
};

// Returns the model's units by group, in order. `classes` holds every unit's class. Throws
// ConfigError with the names in the policy that the model lacks.
std::vector<std::vector<UnitId>> group_units(const ModelSpec& model,
                                             const std::vector<std::string>& classes,
                                             const UnitPolicy& policy);

// Returns the model with each group as one unit: "block.0", "block.0..block.3".
ModelSpec merge_units(const ModelSpec& model, const std::vector<std::vector<UnitId>>& groups);

// Rows [first, first + count) of a table with `all` rows, or that range of a layer's experts.
struct TableRows {
  int64_t first = 0, count = 0, all = 0;
  bool begins() const { return first == 0; }
  bool ends() const { return first + count == all; }
};

// Returns those rows of the parameter.
ParamSpec piece_of(ParamSpec whole, const TableRows& rows);

struct UnitCut {
  std::set<int64_t> halves;  // layers whose block is two units, attention and MLP
  // Among `halves`, the sparse layers whose experts form units of at most `experts` each.
  std::set<int64_t> grouped = {};
  int64_t experts = 0;
  // The most rows of the vocabulary in a unit; 0 means all. Equal if the head is tied.
  int64_t embedding_rows = 0, head_rows = 0;
  int64_t input_rows = 0;  // likewise of the table of the layers' inputs
};

// The part of a decoder that a unit computes.
struct DecoderPart {
  enum class Kind : uint8_t {
    kEmbedding,
    kEmbeddingPiece,
    kInputTable,  // the table of the layers' inputs, or a piece of it
    kInputs,
    kBlock,
    kAttention,
    kMlp,
    kExperts,  // replaces the MLP: all experts with their router, or a group
    kHead,
    kHeadPiece,  // the last piece computes the loss
  };
  Kind kind = Kind::kBlock;
  int64_t layer = 0;    // of a block or its halves
  TableRows rows = {};  // of a piece or a group
};

// Returns the cut of the policy: all blocks, or those whose halves or groups it names
// ("block.3.mlp", "block.3.experts.0"), and tables and experts that exceed its piece size. A table
// with an adapter stays whole.
UnitCut cut_for(const UnitPolicy& policy, const ArchSpec& arch);

// The numbers of a position that the pieces of a head pass on.
struct HeadSums {
  int64_t logs = 1;    // log-sum-exps
  int64_t scores = 1;  // sums of scores
};

// With distillation they are those of a DistillState.
inline constexpr HeadSums kDistillSums{.logs = 3, .scores = 2};

constexpr HeadSums head_sums(const ArchSpec& arch) {
  return arch.distill ? kDistillSums : HeadSums{};
}

// Returns one part for each unit of the cut model, in order.
std::vector<DecoderPart> decoder_parts(const ArchSpec& arch, const UnitCut& cut);

// Returns the parameters of a group of a layer's experts, given `all` parameters of the layer's
// norm, router and experts.
std::vector<ModuleParameter> group_parameters(const std::vector<ModuleParameter>& all,
                                              const TableRows& experts);

// Cuts the units of make_model_spec. Parameters keep their order; pieces replace tables.
ModelSpec cut_units(const ArchSpec& arch, const ModelSpec& whole, const UnitCut& cut);

}  // namespace longshore
