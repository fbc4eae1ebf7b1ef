// delta_blocks: the recurrence of gated DeltaNet on a GPU (delta_rule.h). Blocks of at most
// kScanPositions positions, from many documents, are computed together in batched products; only
// the state passes from chunk to chunk. Without autograd. Compute thread only.
#pragma once

#include "model/delta_terms.h"

namespace longshore {

// As delta_heads_forward and delta_heads_backward.
void delta_blocks_forward(const DeltaTerms& terms, const at::Tensor& out, const at::Tensor& kept);
void delta_blocks_backward(const DeltaTerms& terms, const at::Tensor& grad, const at::Tensor& kept,
                           const DeltaGradients& gradients);

}  // namespace longshore
