// Document attention on a GPU, with LibTorch's kernels and never a mask in memory: in 16 bits many
// documents in a call (FlashAttention with cumulative lengths and windows), else one call for
// each document (memory-efficient attention, which also takes head sizes that are not multiples of
// 8). The same contract as document_attention.h, which sends GPU tensors here.
//
// FlashAttention's repeatable backward adds up the queries' gradients in fp32, in memory that has
// 128 rows more for each document of a call. A call gets at most as many documents as there are
// 128s in the micro-batch's rows, so that this memory never has more than twice those rows. The
// documents of a call depend on their lengths alone, so bits repeat.
#pragma once

#include "model/document_attention.h"

namespace longshore {

// Rows that FlashAttention's backward adds to each document of a call.
inline constexpr int64_t kFlashPadding = 128;
// The most documents that one of its calls gets, in a micro-batch of so many rows.
int64_t flash_backward_documents(int64_t rows);

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
