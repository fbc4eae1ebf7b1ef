#include "kernels/norm.h"

#include <cmath>

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

// A row is normalised by these.
struct Moments {
  Group mean;
  float scale;
};

template <typename T>
Moments moments_of(const Norm& shape, const T* row) {
  const int64_t width = shape.width;
  const auto count = static_cast<float>(width);
  Moments moments{all(0.0f), 0.0f};
  if (shape.centred) {
    Group values = all(0.0f);
    for (int64_t i = 0; i < width; i += kGroup) values = values + load(row + i, width - i);
    moments.mean = all(sum(values) / count);
  }
  Group squares = all(0.0f);
  for (int64_t i = 0; i < width; i += kGroup) {
    const Group value = first(load(row + i, width - i) - moments.mean, width - i);
    squares = squares + value * value;
  }
  moments.scale = 1.0f / std::sqrt(sum(squares) / count + static_cast<float>(shape.eps));
  return moments;
}

template <typename T>
void forward(const Norm& shape, int64_t begin, int64_t end, const T* x, const T* weight,
             const T* bias, T* y) {
  const int64_t width = shape.width;
  const Group offset = all(shape.offset);
  for (int64_t r = begin; r < end; ++r) {
    const T* const in = x + r * width;
    T* const out = y + r * width;
    const Moments moments = moments_of(shape, in);
    const Group scale = all(moments.scale);
    for (int64_t i = 0; i < width; i += kGroup) {
      const int64_t left = width - i;
      Group value = (load(in + i, left) - moments.mean) * scale;
      if (shape.rounds) value = rounded<T>(value);
      value = value * (offset + load(weight + i, left));
      if (bias != nullptr) value = value + load(bias + i, left);
      store(value, out + i, left);
    }
  }
}

HWY_INLINE void add_to(float* sums, const Group& values, int64_t left) {
  store(load(sums, left) + values, sums, left);
}

template <typename T>
void backward(const Norm& shape, int64_t begin, int64_t end, const T* grad, const T* x,
              const T* weight, T* grad_x, float* weight_sum, float* bias_sum) {
  const int64_t width = shape.width;
  const auto count = static_cast<float>(width);
  const Group offset = all(shape.offset);
  for (int64_t r = begin; r < end; ++r) {
    const T* const in = x + r * width;
    const T* const above = grad + r * width;
    T* const out = grad_x + r * width;
    const Moments moments = moments_of(shape, in);
    const Group scale = all(moments.scale);
    Group products = all(0.0f), inner = all(0.0f);
    for (int64_t i = 0; i < width; i += kGroup) {
      const int64_t left = width - i;
      const Group h = load(above + i, left) * (offset + load(weight + i, left));
      products = products + h * ((load(in + i, left) - moments.mean) * scale);
      inner = inner + h;
    }
    const Group along = all(sum(products) / count);
    const Group level = all(shape.centred ? sum(inner) / count : 0.0f);
    for (int64_t i = 0; i < width; i += kGroup) {
      const int64_t left = width - i;
      const Group upper = load(above + i, left);
      const Group value = (load(in + i, left) - moments.mean) * scale;
      if (weight_sum != nullptr) add_to(weight_sum + i, upper * value, left);
      if (bias_sum != nullptr) add_to(bias_sum + i, upper, left);
      const Group h = upper * (offset + load(weight + i, left));
      store((h - level - value * along) * scale, out + i, left);
    }
  }
}

void add_rows(const float* values, int64_t rows, int64_t width, float* sum) {
  for (int64_t i = 0; i < width; i += kGroup) {
    Group total = load(sum + i, width - i);
    for (int64_t r = 0; r < rows; ++r) total = total + load(values + r * width + i, width - i);
    store(total, sum + i, width - i);
  }
}

void norm(const Norm& shape, int64_t begin, int64_t end, const void* x, const void* weight,
          const void* bias, void* y) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    forward(shape, begin, end, static_cast<const T*>(x), static_cast<const T*>(weight),
            static_cast<const T*>(bias), static_cast<T*>(y));
  });
}

void norm_backward(const Norm& shape, int64_t begin, int64_t end, const void* grad, const void* x,
                   const void* weight, void* grad_x, float* weight_sum, float* bias_sum) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    backward(shape, begin, end, static_cast<const T*>(grad), static_cast<const T*>(x),
             static_cast<const T*>(weight), static_cast<T*>(grad_x), weight_sum, bias_sum);
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(norm);
HWY_EXPORT(norm_backward);
HWY_EXPORT(add_rows);

void norm_cpu(const Norm& shape, int64_t begin, int64_t end, const void* x, const void* weight,
              const void* bias, void* y) {
  HWY_DYNAMIC_DISPATCH(norm)(shape, begin, end, x, weight, bias, y);
}

void norm_backward_cpu(const Norm& shape, int64_t begin, int64_t end, const void* grad,
                       const void* x, const void* weight, void* grad_x, float* weight_sum,
                       float* bias_sum) {
  HWY_DYNAMIC_DISPATCH(norm_backward)
  (shape, begin, end, grad, x, weight, grad_x, weight_sum, bias_sum);
}

void add_rows_cpu(const float* values, int64_t rows, int64_t width, float* sum) {
  HWY_DYNAMIC_DISPATCH(add_rows)(values, rows, width, sum);
}

}  // namespace longshore::kernels
#endif
