// Document attention on a GPU, with LibTorch's kernels and never a mask in memory: in 16 bits all
// documents in one call (FlashAttention with cumulative lengths and windows), else one call for
// each document (memory-efficient attention, which also takes head sizes that are not multiples of
// 8). The same contract as document_attention.h, which sends GPU tensors here.
#pragma once

#include "model/document_attention.h"

namespace longshore {

AttentionResult attend_forward_gpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const std::vector<int64_t>& document_starts,
                                   const at::Tensor& sinks);

std::vector<at::Tensor> attend_backward_gpu(const at::Tensor& grad, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& v,
                                            const AttentionResult& result,
                                            const AttentionShape& shape,
                                            const std::vector<int64_t>& document_starts,
                                            const at::Tensor& sinks);

}  // namespace longshore
