// capped_attention: document attention with score = cap * tanh(score / cap) before the softmax
// (Gemma 2). No fused kernel supports it, so plain operations run over pieces of queries with the
// keys they can see, and backward recomputes a piece's scores. Scratch grows linearly with the
// longest document. The contract is that of document_attention.h, which calls it. Compute thread
// only.
#pragma once

#include "model/document_attention.h"

namespace longshore {

// Queries of one piece; it has at most heads times this times the longest document scores.
inline constexpr int64_t kCappedQueries = 128;

AttentionResult attend_forward_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionShape& shape,
                                      const std::vector<int64_t>& document_starts);

std::vector<at::Tensor> attend_backward_capped(const at::Tensor& grad, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionShape& shape,
                                               const std::vector<int64_t>& document_starts);

}  // namespace longshore
