// gpu_attention: document attention on a GPU with LibTorch's kernels, without a mask in memory. In
// 16 bits one call takes many documents (FlashAttention with cumulative lengths and windows);
// otherwise each document is one call (memory-efficient attention). Heads whose size is no multiple
// of 16 bytes are widened with zeros. The contract is that of document_attention.h, which calls it.
// Capped scores have no kernel, and GPUs from compute capability 10.0 on no memory-efficient one:
// capped_attention.cpp composes both of LibTorch's operations.
//
// FlashAttention's repeatable backward sums the queries' gradients in fp32 with 128 extra rows for
// each document of a call. A call gets at most rows / 128 documents of the micro-batch, so this
// scratch never exceeds twice its rows. The grouping depends only on document lengths, so bits
// repeat. Compute thread only.
#pragma once

#include <array>

#include "model/attention/document_attention.h"

namespace longshore {

// Rows that FlashAttention's backward adds for each document of a call.
inline constexpr int64_t kFlashPadding = 128;
// Returns the most documents of one such call for a micro-batch of `rows` rows.
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

// Those with capped scores. The result has no sums.
AttentionResult attend_forward_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionShape& shape,
                                      const std::vector<int64_t>& document_starts);
std::vector<at::Tensor> attend_backward_capped(const at::Tensor& grad, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionShape& shape,
                                               const std::vector<int64_t>& document_starts);

// One document [batch, rows, group, head_dim] by plain operations; k and v are [batch, rows,
// head_dim], which the heads of a group share. Returns the result and the log-sum-exp of each row,
// fp32 [batch, group, rows].
std::array<at::Tensor, 2> attend_forward_plain(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, const AttentionShape& shape);
// Returns the gradients of q, k and v from forward's result and sums.
std::array<at::Tensor, 3> attend_backward_plain(const at::Tensor& grad, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& out, const at::Tensor& sums,
                                                const AttentionShape& shape);

// Copy the sums of a result to their place, and return what backward needs of them.
void keep_sums_gpu(const AttentionResult& result, const AttentionPlace& place,
                   const AttentionShape& shape, const std::vector<int64_t>& document_starts);
std::vector<at::Tensor> kept_sums_gpu(const AttentionPlace& place, const AttentionShape& shape,
                                      const std::vector<int64_t>& document_starts);

}  // namespace longshore
