// Document attention whose scores are capped: score = cap * tanh(score / cap) before the softmax
// (Gemma 2). No fused kernel knows it, so it is made of plain operations over pieces of queries
// with the keys they can see, and backward makes a piece's scores again: what it takes beside its
// operands grows with the longest document, never with its square. The same contract as
// document_attention.h, which sends shapes with a cap here. Compute thread only.
#pragma once

#include "model/document_attention.h"

namespace longshore {

// Queries of one piece; its scores are at most heads times this times the longest document.
inline constexpr int64_t kCappedQueries = 128;

AttentionResult attend_forward_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionShape& shape,
                                      const std::vector<int64_t>& document_starts);

std::vector<at::Tensor> attend_backward_capped(const at::Tensor& grad, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionShape& shape,
                                               const std::vector<int64_t>& document_starts);

}  // namespace longshore
