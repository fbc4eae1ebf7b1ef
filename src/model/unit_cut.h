// UnitCut: which of a decoder's units are cut into smaller ones, and the units that this makes.
// Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "model/arch_spec.h"
#include "model/unit_groups.h"
#include "shard/unit_spec.h"

namespace longshore {

// Rows [first, first + count) of a table with `all` rows; or so many of a layer's experts.
struct TableRows {
  int64_t first = 0, count = 0, all = 0;
  bool begins() const { return first == 0; }
  bool ends() const { return first + count == all; }
};

// Those rows of the parameter.
ParamSpec piece_of(ParamSpec whole, const TableRows& rows);

struct UnitCut {
  std::set<int64_t> halves;  // layers whose block is two units, attention and MLP
  // Of these, sparse layers whose experts are units of at most so many.
  std::set<int64_t> grouped = {};
  int64_t experts = 0;
  // The most rows of the vocabulary in a unit; 0: all. With a tied head both are the same.
  int64_t embedding_rows = 0, head_rows = 0;
};

// What a unit of a decoder computes.
struct DecoderPart {
  enum class Kind : uint8_t {
    kEmbedding,
    kEmbeddingPiece,
    kBlock,
    kAttention,
    kMlp,
    kExperts,  // in the place of the MLP: all of them with their router, or a group
    kHead,
    kHeadPiece,  // the last of them makes the loss
  };
  Kind kind = Kind::kBlock;
  int64_t layer = 0;    // of a block or its halves
  TableRows rows = {};  // of a piece or a group
};

// What the policy wants cut: all blocks, or those whose halves or groups it names ("block.3.mlp",
// "block.3.experts.0"), and tables and experts that are more than its pieces.
UnitCut cut_for(const UnitPolicy& policy, const ArchSpec& arch);

// One for each unit of the cut model, in order.
std::vector<DecoderPart> decoder_parts(const ArchSpec& arch, const UnitCut& cut);

// The units of make_model_spec, cut. Parameters stay in the same order; tables become their pieces.
ModelSpec cut_units(const ArchSpec& arch, const ModelSpec& whole, const UnitCut& cut);

}  // namespace longshore
