// row_products: products of rows with a matrix on the CPU, for decoding, where a call has few rows
// and the bits of one must not depend on the others. y[r][o] is the sum over k of x[r][k] * W[o][k]
// in fp32. Pure functions over a range of outputs, so that several threads can share a product.
//
// [Note: order of a row's sums] The order in which an output is summed depends on the number of
// inputs, on the dtype of x and on the form of W alone: not on the number of rows, on the row's
// place, on the range of outputs or on the tile that computes it. Where W lies by outputs there are
// 16 partial sums, which are added in halves in the end (cpu_vectors-inl.h). In fp32 input k goes
// to number k % 16; in bf16 input k goes to number k / 2 % 16, the odd one of a pair first, as the
// AVX-512 instruction for bf16 adds them. Where W lies by inputs, they are added one after the
// other in chunks of 128, and the chunks in their order. Products are added without rounding first
// (fused), so processors before AVX2, which lack that, have other bits; and the instruction for
// bf16 takes denormal numbers as zeros.
//
// A block of rows reads W from memory once. A packed matrix is unpacked in small pieces in the
// caller's scratch, each for all rows of a block, and never as a whole.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "base/packed_format.h"

namespace longshore::kernels {

// W: its values [outputs, inputs], or [inputs, outputs] if transposed.
struct ProductMatrix {
  const void* values;
  int64_t outputs, inputs;
  int64_t stride;  // elements between its rows; not read if it is packed
  bool transposed;
  // The values have this type. Those of a packed matrix are rounded to it, as unpack.h does.
  DType dtype;
  // One in MXFP4 must be transposed, and its inputs a multiple of 32.
  std::optional<PackedFormat> packed;
};

// The rows of one product. With `adds` y is added to the sum, else overwritten.
struct ProductRows {
  int64_t rows;
  DType x_dtype;      // bf16 only with values of W in bf16
  const void* x;      // [rows, inputs]
  int64_t x_stride;   // elements between rows
  float factor;       // of the sum
  const float* bias;  // [outputs], or null; added behind the factor
  bool adds;
  DType dtype;  // of y, which is rounded once
  void* y;      // [rows, outputs]
  int64_t y_stride;
};

// The floats of scratch that a call needs.
int64_t row_product_scratch();

// Computes the outputs [begin, end) of all rows.
void row_products_cpu(const ProductMatrix& matrix, const ProductRows& rows, int64_t begin,
                      int64_t end, float* scratch);

}  // namespace longshore::kernels
