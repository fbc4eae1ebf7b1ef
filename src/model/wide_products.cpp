#include "model/wide_products.h"

#include <algorithm>
#include <atomic>
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

std::atomic<int> g_skipping = 0;

constexpr int kRowMajor = 101, kAsItLies = 111, kTransposed = 112;  // values of CBLAS's enums

// Elements of a factor that are widened at a time where MKL is missing.
constexpr int64_t kWidenedElements = int64_t{1} << 20;

int checked_size(int64_t size) {
  LONGSHORE_CHECK(size <= std::numeric_limits<int>::max()) << size;
  return static_cast<int>(size);
}

// A factor as CBLAS names it. It owns the copy of a tensor that lies neither way.
struct Factor {
  at::Tensor values;
  int order = kAsItLies, stride = 1;

  explicit Factor(const at::Tensor& factor) : values(factor) {
    if (lies(values.size(1), values.stride(1), values.size(0), values.stride(0))) return;
    if (lies(values.size(0), values.stride(0), values.size(1), values.stride(1))) {
      order = kTransposed;
      return;
    }
    values = factor.contiguous();
    LONGSHORE_CHECK(lies(values.size(1), values.stride(1), values.size(0), values.stride(0)));
  }

 private:
  // Sets the stride and returns true if each of `lines` lines is `length` neighbours.
  bool lies(int64_t length, int64_t step, int64_t lines, int64_t between) {
    if (length > 1 && step != 1) return false;
    if (lines > 1 && between < length) return false;
    stride = checked_size(std::max<int64_t>({1, length, lines > 1 ? between : 0}));
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

void wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  float kept) {
  LONGSHORE_CHECK(sum.scalar_type() == at::kFloat && sum.is_contiguous());
  LONGSHORE_CHECK(left.size(1) == right.size(0) && sum.size(0) == left.size(0) &&
                  sum.size(1) == right.size(1))
      << sum.sizes() << " = " << left.sizes() << " x " << right.sizes();
  if (g_skipping > 0 || sum.numel() == 0) return;
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
    cblas_gemm_bf16bf16f32(kRowMajor, a.order, b.order, checked_size(sum.size(0)),
                           checked_size(sum.size(1)), checked_size(left.size(1)), 1.0f,
                           a.values.const_data_ptr(), a.stride, b.values.const_data_ptr(), b.stride,
                           kept, target.mutable_data_ptr<float>(), checked_size(sum.size(1)));
  }
}

}  // namespace

SkippedWideProducts::SkippedWideProducts() {
  ++g_skipping;
}

SkippedWideProducts::~SkippedWideProducts() {
  --g_skipping;
}

void add_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  wide_product(sum, left, right, 1.0f);
}

void set_wide_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  wide_product(sum, left, right, 0.0f);
}

}  // namespace longshore
