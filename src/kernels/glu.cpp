#include "kernels/glu.h"

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/glu.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

// The activation x * sigmoid(x * (linear + cubic * x^2)) and its slope.
template <GluActivation kActivation>
struct Curve {
  Group x, share;

  explicit HWY_INLINE Curve(const Group& values) : x(values) {
    if constexpr (kActivation == GluActivation::kSilu) {
      share = sigmoid(x);
    } else {
      share = sigmoid(x * (all(kGeluLinear) + all(kGeluCubic) * x * x));
    }
  }
  HWY_INLINE Group value() const { return x * share; }
  HWY_INLINE Group slope() const {
    const Group one = all(1.0f);
    Group inner = x;
    if constexpr (kActivation != GluActivation::kSilu) {
      inner = x * (all(kGeluLinear) + all(3.0f * kGeluCubic) * x * x);
    }
    return share * (one + inner * (one - share));
  }
};

template <GluActivation kActivation, typename T>
void forward(const Glu& shape, int64_t begin, int64_t end, const T* gates, const T* ups, T* ys) {
  for (int64_t r = begin; r < end; ++r) {
    const T* const gate = gates + r * shape.gate_stride;
    const T* const up = ups == nullptr ? nullptr : ups + r * shape.up_stride;
    T* const y = ys + r * shape.width;
    for (int64_t i = 0; i < shape.width; i += kGroup) {
      const int64_t left = shape.width - i;
      const Curve<kActivation> curve(load(gate + i, left));
      Group value = curve.value();
      if (up != nullptr) value = rounded<T>(value) * load(up + i, left);
      store(value, y + i, left);
    }
  }
}

template <GluActivation kActivation, typename T>
void backward(const Glu& shape, int64_t begin, int64_t end, const T* grads, T* gates, T* ups) {
  for (int64_t r = begin; r < end; ++r) {
    T* const gate = gates + r * shape.gate_stride;
    T* const up = ups == nullptr ? nullptr : ups + r * shape.up_stride;
    const T* const grad = grads + r * shape.width;
    for (int64_t i = 0; i < shape.width; i += kGroup) {
      const int64_t left = shape.width - i;
      const Curve<kActivation> curve(load(gate + i, left));
      const Group upper = load(grad + i, left);
      Group through = upper;
      if (up != nullptr) {
        through = rounded<T>(upper * load(up + i, left));
        store(upper * rounded<T>(curve.value()), up + i, left);
      }
      store(through * curve.slope(), gate + i, left);
    }
  }
}

void glu(const Glu& shape, int64_t begin, int64_t end, const void* gate, const void* up, void* y) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const auto* const gates = static_cast<const T*>(gate);
    const auto* const ups = static_cast<const T*>(up);
    if (shape.activation == GluActivation::kSilu) {
      forward<GluActivation::kSilu>(shape, begin, end, gates, ups, static_cast<T*>(y));
    } else {
      forward<GluActivation::kGeluTanh>(shape, begin, end, gates, ups, static_cast<T*>(y));
    }
  });
}

void glu_backward(const Glu& shape, int64_t begin, int64_t end, const void* grad, void* gate,
                  void* up) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const auto* const grads = static_cast<const T*>(grad);
    auto* const gates = static_cast<T*>(gate);
    auto* const ups = static_cast<T*>(up);
    if (shape.activation == GluActivation::kSilu) {
      backward<GluActivation::kSilu>(shape, begin, end, grads, gates, ups);
    } else {
      backward<GluActivation::kGeluTanh>(shape, begin, end, grads, gates, ups);
    }
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(glu);
HWY_EXPORT(glu_backward);

void glu_cpu(const Glu& shape, int64_t begin, int64_t end, const void* gate, const void* up,
             void* y) {
  HWY_DYNAMIC_DISPATCH(glu)(shape, begin, end, gate, up, y);
}

void glu_backward_cpu(const Glu& shape, int64_t begin, int64_t end, const void* grad, void* gate,
                      void* up) {
  HWY_DYNAMIC_DISPATCH(glu_backward)(shape, begin, end, grad, gate, up);
}

}  // namespace longshore::kernels
#endif
