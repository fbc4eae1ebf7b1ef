// Depthwise causal convolution over a flat stream of documents, forward and backward. With p the
// number of tokens before row t in its document, and d from 0 to min(p, count - 1), channel c of
// row t becomes
//   s = round(sum over d of taps[c][count - 1 - d] * x[t - d][c] + bias[c])
//   y = round(silu(s)),  or y = s without an activation
// so values before a document are 0. round() rounds to the dtype; the sum is in fp32, in the order
// of d, with the bias last. Backward, in fp32, with i = round(grad * silu'(s)), or i = grad:
//   grad_x[t][c] = sum over d of taps[c][count - 1 - d] * i[t + d][c],  t + d in t's document
//   grad_taps[c][count - 1 - d] = sum over t of i[t][c] * x[t - d][c]
//   grad_bias[c] = sum over t of i[t][c]
// Backward computes s again, also for the rows beyond a piece that a tap reaches. The last two sums
// are added in pieces of rows that depend on the shape alone, and the pieces in order.
//
// These are pure functions; any thread. x, taps, bias, grad and results have `dtype` (fp32 or bf16)
// and are contiguous, but for the rows of x.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

// The earlier values that a row needs are kept in registers. Published models have 3 or 4 taps.
inline constexpr int64_t kMostTaps = 8;

struct CausalConvolution {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t count = 0;       // taps of a channel, 1 to kMostTaps
  int64_t row_stride = 0;  // stride of x in elements
  bool activated = false;
};

// Operands of both directions.
struct ConvolutionInputs {
  const void* x = nullptr;             // [rows, channels]
  const void* taps = nullptr;          // [channels, count]; the last is that of the row itself
  const void* bias = nullptr;          // [channels], or null
  const int64_t* positions = nullptr;  // [rows]: tokens of the row's document before it
};

// Results of backward; those that are null are not computed. It adds to the sums in fp32.
struct ConvolutionGradients {
  void* x = nullptr;         // [rows, channels]
  float* partial = nullptr;  // scratch of convolution_partial_elements, for the two below
  float* taps = nullptr;     // fp32 [channels, count]
  float* bias = nullptr;     // fp32 [channels]; null if the convolution has no bias
};

// Backward works in pieces of this many rows: at most kMostPieces, of at least kLeastPieceRows.
inline constexpr int64_t kMostConvolutionPieces = 64;
inline constexpr int64_t kLeastConvolutionPieceRows = 32;
constexpr int64_t convolution_piece_rows(int64_t rows) {
  return std::max(kLeastConvolutionPieceRows,
                  (rows + kMostConvolutionPieces - 1) / kMostConvolutionPieces);
}
constexpr int64_t convolution_pieces(int64_t rows) {
  const int64_t each = convolution_piece_rows(rows);
  return (rows + each - 1) / each;
}
// Fewer rows never need more scratch, though they may have more pieces.
constexpr int64_t convolution_partial_elements(const CausalConvolution& shape) {
  constexpr int64_t kLeast = kLeastConvolutionPieceRows;
  return std::min(kMostConvolutionPieces, (shape.rows + kLeast - 1) / kLeast) * (shape.count + 1) *
         shape.channels;
}

// On the CPU a call computes the rows [begin, end).
void causal_convolution_cpu(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                            int64_t begin, int64_t end, void* y);
void causal_convolution_cuda(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                             void* y, CUstream_st* stream);

// On the CPU a call computes the pieces [begin, end); when all are done, one call of
// add_convolution_partials_cpu adds them.
void causal_convolution_backward_cpu(const CausalConvolution& shape,
                                     const ConvolutionInputs& inputs, const void* grad,
                                     int64_t begin, int64_t end,
                                     const ConvolutionGradients& gradients);
void add_convolution_partials_cpu(const CausalConvolution& shape,
                                  const ConvolutionGradients& gradients);
void causal_convolution_backward_cuda(const CausalConvolution& shape,
                                      const ConvolutionInputs& inputs, const void* grad,
                                      const ConvolutionGradients& gradients, CUstream_st* stream);

}  // namespace longshore::kernels
