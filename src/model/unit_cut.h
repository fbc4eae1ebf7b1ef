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

struct UnitCut {
  std::set<int64_t> halves;  // layers whose block is two units, attention and MLP
  bool operator==(const UnitCut&) const = default;
};

// What a unit of a decoder computes.
struct DecoderPart {
  enum class Kind : uint8_t { kEmbedding, kBlock, kAttention, kMlp, kHead };
  Kind kind = Kind::kBlock;
  int64_t layer = 0;  // of a block or its halves
};

// What the policy wants cut: all blocks, or those whose halves it names ("block.3.mlp").
UnitCut cut_for(const UnitPolicy& policy, const ArchSpec& arch);

// One for each unit of the cut model, in order.
std::vector<DecoderPart> decoder_parts(const ArchSpec& arch, const UnitCut& cut);

// The units of make_model_spec, cut. Parameters stay as they are, in the same order.
ModelSpec cut_units(const ArchSpec& arch, const ModelSpec& whole, const UnitCut& cut);

}  // namespace longshore
