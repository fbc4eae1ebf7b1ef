// block_carry: the tensors that a decoder's units hand on: the hidden state, and in Gemma 4 E2B and
// E4B the inputs of layers, and the keys and values that later layers read; and what a plan may
// keep beside them for backward. Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/parameters/unit_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

// The place of the inputs of all layers, [T, layers * width], in each carry that has them.
inline constexpr size_t kLayerInputs = 1;

// Returns the carry out of the table of the layers' inputs: the hidden state, which passes, and the
// table's part of the inputs, of which the next unit needs no value in backward.
std::vector<CarryTensorSpec> input_table_carry(const ArchSpec& arch);

// Returns the carry out of the unit that makes the inputs of layers: the hidden state passes.
std::vector<CarryTensorSpec> inputs_carry(const ArchSpec& arch);

// Returns the carry out of a layer's block or of one of its halves. Behind the hidden state lie the
// norm that both halves of some families read, the inputs of layers until the last has read its
// own, and keys and values of each layer of ArchSpec::keys_behind, in order. What comes from
// earlier layers passes through.
std::vector<CarryTensorSpec> block_carry(const ArchSpec& arch, int64_t layer,
                                         BlockPart part = BlockPart::kWhole);

// Returns the place of the keys of `source` in the carry into the layer's block or its first half;
// the values follow.
size_t place_of_keys(const ArchSpec& arch, int64_t layer, int64_t source);

// Returns what a plan may keep of the forward of a layer's mixer: attention's result and its
// log-sum-exp. Empty for mixers that are not attention, which backward runs again.
std::vector<CarryTensorSpec> mixer_results(const ArchSpec& arch, const LayerSpec& layer);

}  // namespace longshore
