// delta_heads: the recurrence of gated DeltaNet on the CPU (delta_rule.h). It takes a key head of a
// document at a time, chunk after chunk, which fits a thread's caches. Threads share the documents
// and key heads. Each sum has one order, whatever the number of threads and the documents beside
// it, as long as MKL's products repeat their bits (compute_threads.h). Without autograd. Compute
// thread only.
//
// delta_blocks.h is the same recurrence for GPUs, in fewer and larger operations.
#pragma once

#include "model/delta_terms.h"

namespace longshore {

// Fills `out` [T, value_width] and, if `kept` is defined, the states that backward needs.
void delta_heads_forward(const DeltaTerms& terms, const at::Tensor& out, const at::Tensor& kept);

// Fills the gradients from that of forward's result and the states that forward kept.
void delta_heads_backward(const DeltaTerms& terms, const at::Tensor& grad, const at::Tensor& kept,
                          const DeltaGradients& gradients);

}  // namespace longshore
