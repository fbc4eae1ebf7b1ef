// RMSNorm with a gate, forward and backward, over segments of a row. With silu(g) = g / (1 +
// exp(-g)) and n = v * rsqrt(mean(v^2) + eps), the mean over a segment, an element becomes
//   order        v            y                                    used by
//   kNormFirst   x            round(silu(g) * round(round(n) * w)) gated DeltaNet, by heads
//   kGateFirst   x * silu(g)  round(n * w)                         Mamba-2, by groups; x is fp32
// round() rounds to the dtype; all else is fp32. Backward, in fp32, with h = grad * silu(g) for
// kNormFirst and h = grad for kGateFirst, and d = (h * w - n * mean(h * w * n)) * rsqrt(...):
//   grad_w = sum of h * n,  kNormFirst: grad_x = d, grad_g = grad * n * w * silu'(g)
//                           kGateFirst: grad_x = d * silu(g), grad_g = d * x * silu'(g)
// Gradients of weights are added in pieces of rows that depend on the shape alone, and the pieces
// in order.
//
// These are pure functions; any thread. gate, weight, y and grad have `dtype` (fp32 or bf16), and
// so has x with kNormFirst; with kGateFirst x and its gradient are fp32. All are contiguous, but
// for the rows of the gate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

enum class GateOrder { kNormFirst, kGateFirst };

struct GatedNorm {
  DType dtype = DType::kF32;
  GateOrder order = GateOrder::kNormFirst;
  int64_t rows = 0;
  int64_t segments = 0;     // of a row
  int64_t width = 0;        // of a segment
  int64_t gate_stride = 0;  // of its rows, in elements
  double eps = 0.0;

  constexpr int64_t row_width() const { return segments * width; }
  // With kNormFirst all segments have the same weights.
  constexpr int64_t weights() const { return order == GateOrder::kNormFirst ? width : row_width(); }
};

// Operands of both directions.
struct GatedNormInputs {
  const void* x = nullptr;
  const void* gate = nullptr;
  const void* weight = nullptr;  // [weights()]
};

struct GatedNormGradients {
  void* x = nullptr;
  void* gate = nullptr;
  float* partial = nullptr;  // scratch of gated_norm_partial_elements; null: no gradient of weights
  float* weight = nullptr;   // fp32 [weights()], added to; null if `partial` is
};

// Backward works in pieces of this many rows: at most kMostGatedNormPieces.
inline constexpr int64_t kMostGatedNormPieces = 128;
constexpr int64_t gated_norm_piece_rows(int64_t rows) {
  return (rows + kMostGatedNormPieces - 1) / kMostGatedNormPieces;
}
constexpr int64_t gated_norm_pieces(int64_t rows) {
  return rows == 0 ? 0 : (rows + gated_norm_piece_rows(rows) - 1) / gated_norm_piece_rows(rows);
}
// A piece has a sum for each element of a row. Fewer rows never need more scratch, though they may
// have more pieces.
constexpr int64_t gated_norm_partial_elements(const GatedNorm& shape) {
  return std::min(kMostGatedNormPieces, shape.rows) * shape.row_width();
}

// On the CPU a call computes the rows [begin, end).
void gated_norm_cpu(const GatedNorm& shape, const GatedNormInputs& inputs, int64_t begin,
                    int64_t end, void* y);
void gated_norm_cuda(const GatedNorm& shape, const GatedNormInputs& inputs, void* y,
                     CUstream_st* stream);

// On the CPU a call computes the pieces [begin, end); when all are done, one call of
// add_gated_norm_partials_cpu adds them.
void gated_norm_backward_cpu(const GatedNorm& shape, const GatedNormInputs& inputs,
                             const void* grad, int64_t begin, int64_t end,
                             const GatedNormGradients& gradients);
void add_gated_norm_partials_cpu(const GatedNorm& shape, const GatedNormGradients& gradients);
void gated_norm_backward_cuda(const GatedNorm& shape, const GatedNormInputs& inputs,
                              const void* grad, const GatedNormGradients& gradients,
                              CUstream_st* stream);

}  // namespace longshore::kernels
