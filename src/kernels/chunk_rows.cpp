#include "kernels/chunk_rows.h"

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/chunk_rows.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

void read_rows(DType dtype, int64_t rows, int64_t width, const void* x, int64_t stride, float* y) {
  with_type(dtype, [&](auto type) HWY_ATTR {
    const auto* from = static_cast<const decltype(type)*>(x);
    for (int64_t row = 0; row < rows; ++row, from += stride, y += width) {
      for (int64_t i = 0; i < width; i += kGroup)
        store(load(from + i, width - i), y + i, width - i);
    }
  });
}

void write_rows(DType dtype, int64_t rows, int64_t width, const float* x, void* y, int64_t stride) {
  with_type(dtype, [&](auto type) HWY_ATTR {
    auto* to = static_cast<decltype(type)*>(y);
    for (int64_t row = 0; row < rows; ++row, x += width, to += stride) {
      for (int64_t i = 0; i < width; i += kGroup) store(load(x + i, width - i), to + i, width - i);
    }
  });
}

void scale_rows(int64_t rows, int64_t width, const float* factors, const float* x, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Group factor = all(factors[row]);
    for (int64_t i = 0; i < width; i += kGroup) {
      store(factor * load(x + i, width - i), y + i, width - i);
    }
  }
}

void add_scaled_rows(int64_t rows, int64_t width, const float* factors, const float* x, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Group factor = all(factors[row]);
    for (int64_t i = 0; i < width; i += kGroup) {
      store(load(y + i, width - i) + factor * load(x + i, width - i), y + i, width - i);
    }
  }
}

void row_products(int64_t rows, int64_t width, const float* a, const float* b, float* out) {
  for (int64_t row = 0; row < rows; ++row, a += width, b += width) {
    Group sums = all(0.0f);
    for (int64_t i = 0; i < width; i += kGroup) {
      sums = sums + load(a + i, width - i) * load(b + i, width - i);
    }
    out[row] = sum(sums);
  }
}

void decays_between(int64_t size, const float* sums, float least, float* out) {
  for (int64_t row = 0; row < size; ++row, out += size) {
    for (int64_t i = 0; i < size; i += kGroup) {
      Group values = exp(all(sums[row]) - load(sums + i, size - i));
      store(values, out + i, size - i);
    }
    for (int64_t i = 0; i < size; ++i) {
      if (i > row || sums[row] - sums[i] < least) out[i] = 0.0f;
    }
  }
}

// Finds kCount groups of a row. `factor` is the first of `steps` factors of earlier rows, which are
// `stride` apart; `known` is the first of these rows. `left` is the width from the groups on.
template <int64_t kCount>
HWY_INLINE void solve_groups(int64_t steps, const float* factor, int64_t stride, const float* known,
                             int64_t width, int64_t left, float* row) {
  Group sums[kCount];
  for (int64_t g = 0; g < kCount; ++g) sums[g] = load(row + g * kGroup, left - g * kGroup);
  for (int64_t step = 0; step < steps; ++step, factor += stride, known += width) {
    const Group times = all(*factor);
    for (int64_t g = 0; g < kCount; ++g) {
      sums[g] = sums[g] - times * load(known + g * kGroup, left - g * kGroup);
    }
  }
  for (int64_t g = 0; g < kCount; ++g) store(sums[g], row + g * kGroup, left - g * kGroup);
}

void solve_triangular(int64_t size, const float* system, bool transposed, int64_t width, float* b) {
  constexpr int64_t kTogether = 4;  // groups, so that the processor has several sums to add to
  for (int64_t step = 1; step < size; ++step) {
    const int64_t i = transposed ? size - 1 - step : step;
    const int64_t first = transposed ? i + 1 : 0;
    const float* const factor = transposed ? system + first * size + i : system + i * size;
    const int64_t stride = transposed ? size : 1;
    for (int64_t column = 0; column < width;) {
      const float* const known = b + first * width + column;
      float* const row = b + i * width + column;
      const int64_t left = width - column;
      if (left >= kTogether * kGroup) {
        solve_groups<kTogether>(step, factor, stride, known, width, left, row);
        column += kTogether * kGroup;
      } else {
        solve_groups<1>(step, factor, stride, known, width, left, row);
        column += kGroup;
      }
    }
  }
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(read_rows);
HWY_EXPORT(write_rows);
HWY_EXPORT(scale_rows);
HWY_EXPORT(add_scaled_rows);
HWY_EXPORT(row_products);
HWY_EXPORT(decays_between);
HWY_EXPORT(solve_triangular);

void read_rows(DType dtype, int64_t rows, int64_t width, const void* x, int64_t stride, float* y) {
  HWY_DYNAMIC_DISPATCH(read_rows)(dtype, rows, width, x, stride, y);
}

void write_rows(DType dtype, int64_t rows, int64_t width, const float* x, void* y, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(write_rows)(dtype, rows, width, x, y, stride);
}

void scale_rows(int64_t rows, int64_t width, const float* factors, const float* x, float* y) {
  HWY_DYNAMIC_DISPATCH(scale_rows)(rows, width, factors, x, y);
}

void add_scaled_rows(int64_t rows, int64_t width, const float* factors, const float* x, float* y) {
  HWY_DYNAMIC_DISPATCH(add_scaled_rows)(rows, width, factors, x, y);
}

void row_products(int64_t rows, int64_t width, const float* a, const float* b, float* out) {
  HWY_DYNAMIC_DISPATCH(row_products)(rows, width, a, b, out);
}

void decays_between(int64_t size, const float* sums, float least, float* out) {
  HWY_DYNAMIC_DISPATCH(decays_between)(size, sums, least, out);
}

void solve_triangular(int64_t size, const float* system, bool transposed, int64_t width, float* b) {
  HWY_DYNAMIC_DISPATCH(solve_triangular)(size, system, transposed, width, b);
}

}  // namespace longshore::kernels
#endif
