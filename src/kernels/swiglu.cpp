#include "kernels/swiglu.h"

#include "kernels/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

template <typename T>
void forward(int64_t elements, const T* gate, const T* up, T* y) {
  for (int64_t i = 0; i < elements; i += kGroup) {
    const int64_t left = elements - i;
    const Group g = load(gate + i, left);
    store(rounded<T>(g * sigmoid(g)) * load(up + i, left), y + i, left);
  }
}

template <typename T>
void backward(int64_t elements, const T* grad, T* gate, T* up) {
  const Group one = all(1.0f);
  for (int64_t i = 0; i < elements; i += kGroup) {
    const int64_t left = elements - i;
    const Group g = load(gate + i, left);
    const Group upper = load(grad + i, left);
    const Group s = sigmoid(g);
    const Group through = rounded<T>(upper * load(up + i, left));
    store(upper * rounded<T>(g * s), up + i, left);
    store(through * s * (one + g * (one - s)), gate + i, left);
  }
}

void swiglu(DType dtype, int64_t begin, int64_t end, const void* gate, const void* up, void* y) {
  with_type(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    forward(end - begin, static_cast<const T*>(gate) + begin, static_cast<const T*>(up) + begin,
            static_cast<T*>(y) + begin);
  });
}

void swiglu_backward(DType dtype, int64_t begin, int64_t end, const void* grad, void* gate,
                     void* up) {
  with_type(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    backward(end - begin, static_cast<const T*>(grad) + begin, static_cast<T*>(gate) + begin,
             static_cast<T*>(up) + begin);
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(swiglu);
HWY_EXPORT(swiglu_backward);

void swiglu_cpu(DType dtype, int64_t begin, int64_t end, const void* gate, const void* up,
                void* y) {
  HWY_DYNAMIC_DISPATCH(swiglu)(dtype, begin, end, gate, up, y);
}

void swiglu_backward_cpu(DType dtype, int64_t begin, int64_t end, const void* grad, void* gate,
                         void* up) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward)(dtype, begin, end, grad, gate, up);
}

}  // namespace longshore::kernels
#endif
