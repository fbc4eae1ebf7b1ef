// cpu_attention: document attention on the CPU, block by block (FlashAttention-2, Dao 2023), with
// windows, caps and sinks. A thread takes a document and some of the query heads that share a key
// head. Its blocks of scores stay within a processor's caches; their products read the compute
// dtype and sum in fp32. The contract is that of document_attention.h, which calls it. Bits depend
// on a document and on the shape alone. Compute thread only.
#pragma once

#include "model/attention/document_attention.h"

namespace longshore {

// The sums are one tensor: the log-sum-exp of each row, fp32 [T, heads].
AttentionResult attend_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const std::vector<int64_t>& document_starts,
                                   const at::Tensor& sinks);

std::vector<at::Tensor> attend_backward_cpu(const at::Tensor& grad, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& v,
                                            const AttentionResult& result,
                                            const AttentionShape& shape,
                                            const std::vector<int64_t>& document_starts,
                                            const at::Tensor& sinks);

}  // namespace longshore
