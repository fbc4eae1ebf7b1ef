#include "kernels/gated_norm.h"

#include <cmath>

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gated_norm.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"
#include "kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {
namespace {

// A segment of a row. X is the type of x.
template <typename X, typename T>
struct Segment {
  const X* x;
  const T* gate;
  const T* weight;
  int64_t width;
  bool gate_first;

  HWY_INLINE Segment(const GatedNorm& shape, const GatedNormInputs& inputs, int64_t row,
                     int64_t segment)
      : x(static_cast<const X*>(inputs.x) + row * shape.row_width() + segment * shape.width),
        gate(static_cast<const T*>(inputs.gate) + row * shape.gate_stride + segment * shape.width),
        weight(static_cast<const T*>(inputs.weight)),
        width(shape.width),
        gate_first(shape.order == GateOrder::kGateFirst) {
    if (gate_first) weight += segment * shape.width;
  }

  HWY_INLINE Group silu(int64_t at) const {
    const Group value = load(gate + at, width - at);
    return value * sigmoid(value);
  }
  // Returns the values that are normalised.
  HWY_INLINE Group value(int64_t at) const {
    const Group value = load(x + at, width - at);
    return gate_first ? value * silu(at) : value;
  }
  HWY_INLINE float factor(float squares, double eps) const {
    return 1.0f / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(eps));
  }
};

template <typename X, typename T>
void forward(const GatedNorm& shape, const Segment<X, T>& segment, T* y) {
  const int64_t width = segment.width;
  Group squares = all(0.0f);
  for (int64_t at = 0; at < width; at += kGroup) {
    const Group value = segment.value(at);
    squares = squares + value * value;
  }
  const Group factor = all(segment.factor(sum(squares), shape.eps));
  for (int64_t at = 0; at < width; at += kGroup) {
    const Group normed = segment.value(at) * factor;
    const Group weight = load(segment.weight + at, width - at);
    const Group out = segment.gate_first
                          ? normed * weight
                          : segment.silu(at) * rounded<T>(rounded<T>(normed) * weight);
    store(out, y + at, width - at);
  }
}

// Holds what backward reads at some elements of a segment.
struct Values {
  Group x, gate, s, silu, upper, weight;
  Group value;  // what is normalised
  Group inner;  // the gradient of the weighed values

  template <typename X, typename T>
  HWY_INLINE Values(const Segment<X, T>& segment, const T* grad, int64_t at) {
    const int64_t left = segment.width - at;
    x = load(segment.x + at, left);
    gate = load(segment.gate + at, left);
    s = sigmoid(gate);
    silu = gate * s;
    upper = load(grad + at, left);
    weight = load(segment.weight + at, left);
    value = segment.gate_first ? x * silu : x;
    inner = segment.gate_first ? upper : upper * silu;
  }
  // Returns the gradient of the gate from that of its silu.
  HWY_INLINE Group through_silu(const Group& grad) const {
    const Group one = all(1.0f);
    return grad * s * (one + gate * (one - s));
  }
};

// Writes the gradients of x and the gate; adds that of the weights to `sums` unless it is null.
template <typename X, typename T>
void backward(const GatedNorm& shape, const Segment<X, T>& segment, const T* grad, X* grad_x,
              T* grad_gate, float* sums) {
  const int64_t width = segment.width;
  Group squares = all(0.0f), along = all(0.0f);
  for (int64_t at = 0; at < width; at += kGroup) {
    const Values in(segment, grad, at);
    squares = squares + in.value * in.value;
    along = along + in.inner * in.weight * in.value;
  }
  const float scale = segment.factor(sum(squares), shape.eps);
  const Group factor = all(scale), mean = all(sum(along) * scale / static_cast<float>(width));
  for (int64_t at = 0; at < width; at += kGroup) {
    const int64_t left = width - at;
    const Values in(segment, grad, at);
    const Group normed = in.value * factor;
    if (sums != nullptr) store(load(sums + at, left) + in.inner * normed, sums + at, left);
    const Group inner = (in.inner * in.weight - normed * mean) * factor;
    if (segment.gate_first) {
      store(inner * in.silu, grad_x + at, left);
      store(in.through_silu(inner * in.x), grad_gate + at, left);
    } else {
      store(inner, grad_x + at, left);
      store(in.through_silu(in.upper * normed * in.weight), grad_gate + at, left);
    }
  }
}

template <typename X, typename T>
void backward_piece(const GatedNorm& shape, const GatedNormInputs& inputs, const T* grad,
                    int64_t piece, const GatedNormGradients& gradients) {
  const int64_t begin = piece * gated_norm_piece_rows(shape.rows);
  const int64_t end = std::min(shape.rows, begin + gated_norm_piece_rows(shape.rows));
  float* sums = gradients.partial;
  if (sums != nullptr) {
    sums += piece * shape.row_width();
    std::fill_n(sums, shape.row_width(), 0.0f);
  }
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < shape.segments; ++i) {
      const int64_t at = row * shape.row_width() + i * shape.width;
      backward(shape, Segment<X, T>(shape, inputs, row, i), grad + at,
               static_cast<X*>(gradients.x) + at, static_cast<T*>(gradients.gate) + at,
               sums == nullptr ? nullptr : sums + i * shape.width);
    }
  }
}

// Calls body(X(), T()) with the types of x and of the others.
template <typename Body>
void with_types(const GatedNorm& shape, const Body& body) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    if (shape.order == GateOrder::kGateFirst) {
      body(float(), type);
    } else {
      body(type, type);
    }
  });
}

}  // namespace

void gated_norm(const GatedNorm& shape, const GatedNormInputs& inputs, int64_t begin, int64_t end,
                void* y) {
  with_types(shape, [&](auto of_x, auto type) HWY_ATTR {
    using X = decltype(of_x);
    using T = decltype(type);
    for (int64_t row = begin; row < end; ++row) {
      T* const out = static_cast<T*>(y) + row * shape.row_width();
      for (int64_t i = 0; i < shape.segments; ++i) {
        forward(shape, Segment<X, T>(shape, inputs, row, i), out + i * shape.width);
      }
    }
  });
}

void gated_norm_backward(const GatedNorm& shape, const GatedNormInputs& inputs, const void* grad,
                         int64_t begin, int64_t end, const GatedNormGradients& gradients) {
  with_types(shape, [&](auto of_x, auto type) HWY_ATTR {
    using X = decltype(of_x);
    using T = decltype(type);
    for (int64_t piece = begin; piece < end; ++piece) {
      backward_piece<X>(shape, inputs, static_cast<const T*>(grad), piece, gradients);
    }
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(gated_norm);
HWY_EXPORT(gated_norm_backward);

void gated_norm_cpu(const GatedNorm& shape, const GatedNormInputs& inputs, int64_t begin,
                    int64_t end, void* y) {
  HWY_DYNAMIC_DISPATCH(gated_norm)(shape, inputs, begin, end, y);
}

void gated_norm_backward_cpu(const GatedNorm& shape, const GatedNormInputs& inputs,
                             const void* grad, int64_t begin, int64_t end,
                             const GatedNormGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(gated_norm_backward)(shape, inputs, grad, begin, end, gradients);
}

void add_gated_norm_partials_cpu(const GatedNorm& shape, const GatedNormGradients& gradients) {
  const int64_t elements = gated_norm_pieces(shape.rows) * shape.row_width();
  add_rows_cpu(gradients.partial, elements / shape.weights(), shape.weights(), gradients.weight);
}

}  // namespace longshore::kernels
#endif
