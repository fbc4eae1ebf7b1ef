#include "model/ops/wide_products.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/errors.h"
#include "device/gpu_tensors.h"

// MKL, which LibTorch's library for x86-64 contains, adds products of bf16 to fp32 in place, and is
// fast on processors without instructions for bf16 too. A LibTorch without MKL has no such symbol,
// and the address is null. LibTorch's MKL has 32-bit integers.
extern "C" [[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout, int left_order, int right_order,
                                                     int rows, int columns, int inner, float alpha,
                                                     const void* left, int left_stride,
                                                     const void* right, int right_stride,
                                                     float beta, float* sum, int sum_stride);

namespace longshore {
namespace {

constexpr int kRowMajor = 101, kNotTransposed = 111, kTransposed = 112;  // values of CBLAS's enums

// Elements of a factor that are widened at a time where MKL is missing.
constexpr int64_t kWidenedElements = int64_t{1} << 20;

int checked_size(int64_t size) {
  LONGSHORE_CHECK(size <= std::numeric_limits<int>::max()) << size;
  return static_cast<int>(size);
}

// Calls MKL. `kept` is the factor of what `sum` has.
void multiply_bf16(int64_t rows, int64_t columns, int64_t inner, const BlockFactor& left,
                   const BlockFactor& right, float kept, float* sum, int64_t stride) {
  cblas_gemm_bf16bf16f32(kRowMajor, left.transposed ? kTransposed : kNotTransposed,
                         right.transposed ? kTransposed : kNotTransposed, checked_size(rows),
                         checked_size(columns), checked_size(inner), 1.0f, left.values,
                         checked_size(left.stride), right.values, checked_size(right.stride), kept,
                         sum, checked_size(stride));
}

// An operand of a product. It owns a contiguous copy if the tensor has neither rows nor columns
// that are contiguous.
struct Factor {
  at::Tensor values;
  bool transposed = false;
  int64_t stride = 1;

  explicit Factor(const at::Tensor& factor) : values(factor) {
    if (lies(values.size(1), values.stride(1), values.size(0), values.stride(0))) return;
    if (lies(values.size(0), values.stride(0), values.size(1), values.stride(1))) {
      transposed = true;
      return;
    }
    values = factor.contiguous();
    LONGSHORE_CHECK(lies(values.size(1), values.stride(1), values.size(0), values.stride(0)));
  }
  BlockFactor factor() const { return {values.const_data_ptr(), stride, transposed}; }

 private:
  // Sets the stride and returns true if each of `lines` lines is `length` neighbours.
  bool lies(int64_t length, int64_t step, int64_t lines, int64_t between) {
    if (length > 1 && step != 1) return false;
    if (lines > 1 && between < length) return false;
    stride = std::max<int64_t>({1, length, lines > 1 ? between : 0});
    return true;
  }
};

// `kept` is the factor of what `sum` has.
void add_widened(at::Tensor sum, const at::Tensor& left, const at::Tensor& right, float kept) {
  const int64_t widest = std::max({int64_t{1}, left.size(0), right.size(1)});
  const int64_t step = std::max<int64_t>(1, kWidenedElements / widest);
  for (int64_t begin = 0; begin < right.size(0); begin += step) {
    const int64_t end = std::min(begin + step, right.size(0));
    sum.addmm_(left.slice(1, begin, end).to(at::kFloat), right.slice(0, begin, end).to(at::kFloat),
               begin == 0 ? kept : 1.0);
  }
}

at::Tensor tensor_of(DType dtype, int64_t rows, int64_t columns, const BlockFactor& factor) {
  const at::ScalarType type = scalar_type_of(dtype);
  const int64_t row_step = factor.transposed ? 1 : factor.stride;
  const int64_t column_step = factor.transposed ? factor.stride : 1;
  // from_blob takes memory that may be written; a factor is only read.
  return at::from_blob(const_cast<void*>(factor.values), {rows, columns}, {row_step, column_step},
                       type);
}

void wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  float kept) {
  LONGSHORE_CHECK(sum.scalar_type() == at::kFloat && sum.is_contiguous());
  LONGSHORE_CHECK(left.size(1) == right.size(0) && sum.size(0) == left.size(0) &&
                  sum.size(1) == right.size(1))
      << sum.sizes() << " = " << left.sizes() << " x " << right.sizes();
  if (measures_absent_gpu() || sum.numel() == 0) return;
  at::Tensor target = sum;
  if (left.size(1) == 0) {
    if (kept == 0.0f) target.zero_();
  } else if (left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat) {
    target.addmm_(left, right, kept);
  } else if (on_gpu(left)) {
    at::addmm_out(target, target, left, right, at::kFloat, kept);
  } else if (cblas_gemm_bf16bf16f32 == nullptr) {
    add_widened(target, left, right, kept);
  } else {
    LONGSHORE_CHECK(left.scalar_type() == at::kBFloat16 && right.scalar_type() == at::kBFloat16);
    const Factor a(left), b(right);
    multiply_bf16(sum.size(0), sum.size(1), left.size(1), a.factor(), b.factor(), kept,
                  target.mutable_data_ptr<float>(), sum.size(1));
  }
}

}  // namespace

void block_product(DType dtype, int64_t rows, int64_t columns, int64_t inner,
                   const BlockFactor& left, const BlockFactor& right, bool adds, float* sum,
                   int64_t stride) {
  const float kept = adds ? 1.0f : 0.0f;
  if (dtype == DType::kBF16 && cblas_gemm_bf16bf16f32 != nullptr) {
    return multiply_bf16(rows, columns, inner, left, right, kept, sum, stride);
  }
  add_widened(at::from_blob(sum, {rows, columns}, {stride, 1}, at::kFloat),
              tensor_of(dtype, rows, inner, left), tensor_of(dtype, inner, columns, right), kept);
}

void add_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  wide_product(sum, left, right, 1.0f);
}

void set_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  wide_product(sum, left, right, 0.0f);
}

}  // namespace longshore
