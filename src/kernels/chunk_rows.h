// chunk_rows: loops over the rows of small fp32 matrices, which the recurrences over chunks of
// positions run on the CPU. Matrices are contiguous. Sums have one order on every instruction set
// (cpu_vectors-inl.h). Pure functions; any thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace longshore::kernels {

// Factors below e^-46 = 1e-20 are taken as 0 in sums that also have a term near 1. In fp32 they
// cannot change such a sum, and they would lead to denormal numbers, with which processors are ten
// times slower.
inline constexpr float kLeastExponent = -46.0f;

// Reads rows of `dtype` (fp32 or bf16), which are `stride` elements apart, or writes them, rounded
// to nearest.
void read_rows(DType dtype, int64_t rows, int64_t width, const void* x, int64_t stride, float* y);
void write_rows(DType dtype, int64_t rows, int64_t width, const float* x, void* y, int64_t stride);

// Writes factors[i] times row i of x to row i of y. They may be the same.
void scale_rows(int64_t rows, int64_t width, const float* factors, const float* x, float* y);

// Adds factors[i] times row i of x to row i of y.
void add_scaled_rows(int64_t rows, int64_t width, const float* factors, const float* x, float* y);

// Writes the products of the rows of a and b to out[i].
void row_products(int64_t rows, int64_t width, const float* a, const float* b, float* out);

// Writes exp(sums[i] - sums[j]) to out[i, j] where j <= i and the difference is not below `least`,
// else 0. out is [size, size].
void decays_between(int64_t size, const float* sums, float least, float* out);

// Solves in place (1 + A) x = b, where A is the part below the diagonal of `system` [size, size],
// or its transpose. b is [size, width]. A row is found from those before it, in their order.
void solve_triangular(int64_t size, const float* system, bool transposed, int64_t width, float* b);

}  // namespace longshore::kernels
