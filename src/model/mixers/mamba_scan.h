// mamba_scan: the recurrence of Mamba-2 (Dao and Gu, arXiv:2405.21060) over a flat stream of
// documents, in chunks of matrix products. It has its own backward, which saves little; it runs
// with or without autograd. The state begins at zero in every document. Compute thread only.
//
// [Note: chunks of Mamba-2] Within a chunk (document_chunks.h) the recurrence is attention without
// a softmax, whose scores decay; between chunks the state passes. The heads of a group share keys
// and queries, so products with states are one matrix product for all of them. Forward keeps the
// state before each chunk but a document's first, and nothing else; backward computes the rest
// again. So memory grows with the positions by one state, heads * head_dim * state fp32 numbers,
// for each chunk.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"

namespace longshore {

// MambaInputs: the tensors that the recurrence reads.
struct MambaInputs {
  at::Tensor mixed;   // [T, mixed_width]: the values of all heads, then keys and queries by group
  at::Tensor steps;   // [T, heads]
  at::Tensor rate;    // [heads]; the state decays by exp(-exp(rate) * step)
  at::Tensor offset;  // [heads]; the step is softplus(steps + offset), at least MambaSpec's
  at::Tensor skip;    // [heads]; the factor of the values that are added to what is read
};

// Returns the values that the queries read from the state, and skip times the values, fp32
// [T, inner_width]. All is computed in fp32. Saves the inputs and the states.
at::Tensor mamba_scan(const MambaInputs& inputs, const MambaSpec& spec,
                      const std::vector<int64_t>& document_starts);

}  // namespace longshore
