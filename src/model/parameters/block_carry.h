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

// Returns what a plan may keep of the forward of a layer's block, or of one of its halves, in this
// order:
// - attention's result and its log-sum-exp;
// - queries, keys and values (keeps_rotated_heads). Latent attention computes those again;
// - the sum between the halves, or attention's output before the norm that follows it, because that
//   norm's backward reads it. A half returns the sum, and parallel branches do not read it;
// - gate and up of the MLP. Experts compute theirs again, rows by rows.
// Mixers that are not attention keep nothing: backward runs them again, but for their last product.
std::vector<CarryTensorSpec> block_results(const ArchSpec& arch, int64_t layer,
                                           BlockPart part = BlockPart::kWhole);

// Returns whether queries and keys are kept as attention reads them. Otherwise they are kept as the
// products return them, because the operations between, such as norms of heads, read those in
// their backward. `arch` has the sizes of the layer.
bool keeps_rotated_heads(const ArchSpec& arch);

}  // namespace longshore
