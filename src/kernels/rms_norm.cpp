#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/cpu_values.h"

namespace longshore::kernels {
namespace {

template <typename T>
float reciprocal_deviation(const T* row, int64_t width, double eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < width; ++i) squares += to_float(row[i]) * to_float(row[i]);
  return 1.0f / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(eps));
}

template <typename T>
void forward(const RmsNorm& shape, const T* x, const T* weight, T* y) {
  for (int64_t r = 0; r < shape.rows; ++r, x += shape.width, y += shape.width) {
    const float scale = reciprocal_deviation(x, shape.width, shape.eps);
    for (int64_t i = 0; i < shape.width; ++i) {
      y[i] = rounded_to<T>(rounded<T>(to_float(x[i]) * scale) * to_float(weight[i]));
    }
  }
}

template <typename T>
void backward(const RmsNorm& shape, const T* grad, const T* x, const T* weight, T* grad_x,
              float* weight_sum) {
  const int64_t width = shape.width;
  for (int64_t r = 0; r < shape.rows; ++r, grad += width, x += width, grad_x += width) {
    const float scale = reciprocal_deviation(x, width, shape.eps);
    float along = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      along += to_float(grad[i]) * to_float(weight[i]) * (to_float(x[i]) * scale);
    }
    along /= static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) {
      const float value = to_float(x[i]) * scale;
      const float upper = to_float(grad[i]);
      if (weight_sum != nullptr) weight_sum[i] += upper * value;
      grad_x[i] = rounded_to<T>((upper * to_float(weight[i]) - value * along) * scale);
    }
  }
}

}  // namespace

void rms_norm_cpu(const RmsNorm& shape, const void* x, const void* weight, void* y) {
  with_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    forward(shape, static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y));
  });
}

void rms_norm_backward_cpu(const RmsNorm& shape, const void* grad, const void* x,
                           const void* weight, void* grad_x, float* weight_sum) {
  with_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    backward(shape, static_cast<const T*>(grad), static_cast<const T*>(x),
             static_cast<const T*>(weight), static_cast<T*>(grad_x), weight_sum);
  });
}

}  // namespace longshore::kernels
