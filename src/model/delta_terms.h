// delta_terms: what both ways to compute the recurrence of gated DeltaNet read and write
// (delta_heads.h, delta_blocks.h). Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "model/arch_spec.h"

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

}  // namespace longshore
