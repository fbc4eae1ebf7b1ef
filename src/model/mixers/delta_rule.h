// delta_rule: the recurrence of gated DeltaNet (Yang et al., arXiv:2412.06464) over a flat stream
// of documents, in chunks of matrix products. It has its own backward, which saves little; it runs
// with or without autograd. The state begins at zero in every document. Compute thread only.
//
// [Note: chunks of the delta rule] A document is cut into chunks (document_chunks.h). Within a
// chunk the recurrence is a triangular system, so everything is products of small matrices; the
// state passes from chunk to chunk. Forward keeps the state before each chunk but a document's
// first, and nothing else; backward computes the rest again. So memory grows with the positions by
// one state, value_heads * key_dim * value_dim fp32 numbers, for each chunk. On a GPU many chunks
// are computed together, because each operation has a cost; a CPU takes one after the other, so
// that it fits its caches (delta_scan.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"

namespace longshore {

// DeltaInputs: the tensors that the recurrence reads.
struct DeltaInputs {
  at::Tensor mixed;  // [T, mixed_width]: all queries, all keys, all values
  at::Tensor beta;   // [T, value_heads]; its sigmoid is the share of a value that is written
  at::Tensor decay;  // [T, value_heads]
  at::Tensor rate;   // [value_heads]; the state decays by exp(-exp(rate) * softplus(decay + step))
  at::Tensor step;   // [value_heads]
};

// Returns the values that the queries read from the state, [T, value_width], in the dtype of
// `mixed`. All is computed in fp32. Saves the inputs and the states.
at::Tensor delta_rule(const DeltaInputs& inputs, const DeltaSpec& spec,
                      const std::vector<int64_t>& document_starts);

}  // namespace longshore
