// delta_rule: the operations of gated DeltaNet (Yang et al., arXiv:2412.06464) over a flat stream
// of documents: the causal convolution, the recurrence in chunks of matrix products, and the gated
// norm. Each has its own backward, which saves little; they run with or without autograd. State and
// convolution begin at zero in every document. Compute thread only.
//
// [Note: chunks of the delta rule] A document is cut into chunks of kDeltaChunk positions; one of
// at most half a chunk is a single chunk of the next power of two. Within a chunk the recurrence is
// a triangular system, so everything is products of small matrices. Blocks of at most
// kDeltaPositions positions are computed together, except that the state passes from chunk to
// chunk. Forward keeps the state before each chunk but a document's first, and nothing else;
// backward computes the rest again. So memory grows with the positions by one state, value_heads *
// key_dim * value_dim fp32 numbers, for each chunk.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/arch_spec.h"

namespace longshore {

inline constexpr int64_t kDeltaChunk = 64;
inline constexpr int64_t kDeltaPositions = 512;

// Returns silu of the sum over j of weight[c, 0, j] * x[t - (taps - 1) + j, c], where what lies
// before the document is 0. x is [T, channels], weight [channels, 1, taps]; `positions` are
// MicroBatch::positions. Saves x.
at::Tensor causal_convolution(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& positions);

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

// Returns weight * rms(x) * silu(gate), where the norm is over each head of weight's width. Saves x
// and gate.
at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                      double eps);

}  // namespace longshore
