// delta_scan: the two ways to compute the recurrence of gated DeltaNet (delta_rule.h), and what
// both read and write. Without autograd. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"

namespace longshore {

inline constexpr double kDeltaNormEps = 1e-6;  // fixed, whatever the model's norms have

// The tensors need no gradients. Borrows the documents' starts.
struct DeltaTerms {
  at::Tensor mixed;  // [T, mixed_width]: all queries, all keys, all values, fp32 or bf16
  at::Tensor beta;   // fp32 [T, value_heads]: the share of a value that is written
  at::Tensor decay;  // fp32 [T, value_heads]: the logarithm of what is left of the state
  DeltaSpec spec;
  const std::vector<int64_t>& document_starts;

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(spec.key_dim)); }
};

// The gradients of the terms: `mixed` in the dtype of the result's gradient, the others fp32.
struct DeltaGradients {
  at::Tensor mixed, beta, decay;
};

// On the CPU: a key head of a document at a time, chunk after chunk, which fits a thread's caches.
// Threads share the documents and key heads. Each sum has one order, whatever the number of threads
// and the documents beside it, as long as MKL's products repeat their bits (compute_threads.h).
// Forward fills `out` [T, value_width] and, if `kept` is defined, the states that backward needs;
// backward fills the gradients from that of `out` and these states.
void delta_heads_forward(const DeltaTerms& terms, const at::Tensor& out, const at::Tensor& kept);
void delta_heads_backward(const DeltaTerms& terms, const at::Tensor& grad, const at::Tensor& kept,
                          const DeltaGradients& gradients);

// On a GPU: blocks of at most kScanPositions positions, from many documents, in batched products;
// only the state passes from chunk to chunk. The arguments are the same.
void delta_blocks_forward(const DeltaTerms& terms, const at::Tensor& out, const at::Tensor& kept);
void delta_blocks_backward(const DeltaTerms& terms, const at::Tensor& grad, const at::Tensor& kept,
                           const DeltaGradients& gradients);

}  // namespace longshore
