// document_attention: causal attention over a flat stream of documents, forward and backward,
// without autograd and without a matrix of all position pairs. cpu_attention.h or gpu_attention.h
// does the work. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace longshore {

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: all earlier positions of the document
  double scale = 1.0;
  double cap = 0.0;  // scores become cap * tanh(score / cap); 0: no cap
};

struct AttentionResult {
  at::Tensor out;                // [T, heads * head_dim]
  std::vector<at::Tensor> sums;  // log-sum-exp of the rows, fp32 [T, heads]; on a GPU
                                 // the kernels' saved tensors, and none with a cap
};

// The memory in which a plan keeps a result from forward to backward. Without `out` nothing is
// kept.
struct AttentionPlace {
  at::Tensor out = {};   // [T, heads * head_dim]
  at::Tensor sums = {};  // fp32 [T, heads], in the kernel's order
  bool filled = false;   // forward has put its result here
};
// q is [T, heads * head_dim]; k and v are [T, kv_heads * head_dim]; rows may be strided.
// `document_starts` holds the start of each document, then T. `sinks` [heads] adds one score to
// every query of a head; it takes a share of the weights and adds no value.
AttentionResult attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts,
                               const at::Tensor& sinks = {});

// Copies the result of a forward to its place.
void keep_attention(const AttentionResult& result, const AttentionPlace& place,
                    const AttentionShape& shape, const std::vector<int64_t>& document_starts);
// Returns the result that was kept, as views of the place where the kernels allow that.
AttentionResult kept_attention(const AttentionPlace& place, const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts);
// Returns what a filled place keeps; else runs attend_forward, and keeps the result if the place
// has memory.
AttentionResult attend_at(const AttentionPlace& place, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionShape& shape,
                          const std::vector<int64_t>& document_starts, const at::Tensor& sinks);

// Returns the gradients of q, k and v, and of the sinks if defined.
std::vector<at::Tensor> attend_backward(const at::Tensor& grad, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionResult& result, const AttentionShape& shape,
                                        const std::vector<int64_t>& document_starts,
                                        const at::Tensor& sinks = {});

}  // namespace longshore
