// block_carry: the tensors that a decoder's blocks hand on: the hidden state, and the keys and
// values that later layers read (Gemma 4 E2B, E4B). Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/arch_spec.h"
#include "model/unit_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

// Returns the carry out of a layer's block or of one of its halves. What lies behind the hidden
// state, and behind the norm that both halves of some families read, are keys and values of each
// layer of ArchSpec::keys_behind, in order. Those of earlier layers pass through.
std::vector<CarryTensorSpec> block_carry(const ArchSpec& arch, int64_t layer,
                                         BlockPart part = BlockPart::kWhole);

// Returns the place of the keys of `source` in the carry into the layer's block or its first half;
// the values follow.
size_t place_of_keys(const ArchSpec& arch, int64_t layer, int64_t source);

}  // namespace longshore
