#include "kernels/swiglu.h"

#include <cmath>

#include "kernels/cpu_values.h"

namespace longshore::kernels {
namespace {

float sigmoid(float value) {
  return 1.0f / (1.0f + std::exp(-value));
}

template <typename T>
void forward(int64_t elements, const T* gate, const T* up, T* y) {
  for (int64_t i = 0; i < elements; ++i) {
    const float g = to_float(gate[i]);
    y[i] = rounded_to<T>(rounded<T>(g * sigmoid(g)) * to_float(up[i]));
  }
}

template <typename T>
void backward(int64_t elements, const T* grad, T* gate, T* up) {
  for (int64_t i = 0; i < elements; ++i) {
    const float g = to_float(gate[i]);
    const float upper = to_float(grad[i]);
    const float s = sigmoid(g);
    const float through = rounded<T>(upper * to_float(up[i]));
    up[i] = rounded_to<T>(upper * rounded<T>(g * s));
    gate[i] = rounded_to<T>(through * s * (1.0f + g * (1.0f - s)));
  }
}

}  // namespace

void swiglu_cpu(DType dtype, int64_t elements, const void* gate, const void* up, void* y) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    forward(elements, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(y));
  });
}

void swiglu_backward_cpu(DType dtype, int64_t elements, const void* grad, void* gate, void* up) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    backward(elements, static_cast<const T*>(grad), static_cast<T*>(gate), static_cast<T*>(up));
  });
}

}  // namespace longshore::kernels
