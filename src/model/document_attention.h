// Document attention: causal attention over a flat stream of documents, forward and backward,
// without autograd and without a matrix of all positions by all positions. Documents are taken one
// at a time; a sliding window goes in pieces of queries with the keys they can see. On a GPU its
// own kernels do it (gpu_attention.h), and where scores are capped plain operations
// do (capped_attention.h). Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace longshore {

// Queries of one piece of sliding-window attention; its keys are at most this plus the window.
inline constexpr int64_t kWindowQueries = 512;

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0 = all earlier positions of the document
  double scale = 1.0;
  double cap = 0.0;  // scores become cap * tanh(score / cap); 0 = they stay
};

struct AttentionResult {
  at::Tensor out;                // [T, heads * head_dim]
  std::vector<at::Tensor> sums;  // log of the sum of exponentials, for every piece; on a GPU
                                 // what its kernels want back; none where scores are capped
};

// q [T, heads * head_dim]; k, v [T, kv_heads * head_dim]; rows may be strided.
// document_starts: where each document starts, and T at the end. sinks [heads]: a score more for
// every query of the head, which takes its share of the weights and adds no value.
AttentionResult attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts,
                               const at::Tensor& sinks = {});

// The gradients of q, k and v, and of the sinks where there are any.
std::vector<at::Tensor> attend_backward(const at::Tensor& grad, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionResult& result, const AttentionShape& shape,
                                        const std::vector<int64_t>& document_starts,
                                        const at::Tensor& sinks = {});

}  // namespace longshore
