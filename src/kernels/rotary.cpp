#include "kernels/rotary.h"

#include <cmath>

#include "kernels/cpu_values.h"

namespace longshore::kernels {
namespace {

template <typename T>
void rotate(const Rotary& shape, const T* x, const int64_t* positions, const float* frequencies,
            T* out) {
  const int64_t half = shape.head_dim / 2;
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[r]) * frequencies[i];
      const float cosine = rounded<T>(std::cos(angle));
      const float sine = rounded<T>(std::sin(angle)) * static_cast<float>(shape.direction);
      for (int64_t h = 0; h < shape.heads; ++h) {
        const T* in = x + r * shape.row_stride + h * shape.head_dim;
        T* to = out + (r * shape.heads + h) * shape.head_dim;
        const float a = to_float(in[i]), b = to_float(in[i + half]);
        to[i] = rounded_to<T>(rounded<T>(a * cosine) - rounded<T>(b * sine));
        to[i + half] = rounded_to<T>(rounded<T>(b * cosine) + rounded<T>(a * sine));
      }
    }
  }
}

}  // namespace

void rotary_cpu(const Rotary& shape, const void* x, const int64_t* positions,
                const float* frequencies, void* out) {
  LONGSHORE_CHECK(shape.head_dim % 2 == 0) << shape.head_dim;
  with_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    rotate(shape, static_cast<const T*>(x), positions, frequencies, static_cast<T*>(out));
  });
}

}  // namespace longshore::kernels
