#include <initializer_list>

#include "kernels/cuda_values.h"
#include "kernels/gated_norm.h"
#include "kernels/partial_sums.h"

namespace longshore::kernels {
namespace {

// A thread handles this many neighbours at a time if the operands allow it, so that a warp has a
// segment of 128 values, as heads are.
constexpr int kNeighbours = 4;

// The values that a thread reads of neighbouring elements, and values that both directions derive
// from them.
template <typename X, typename T, int kCount>
struct Values {
  float x[kCount], gate[kCount], s[kCount], silu[kCount];
  float value[kCount];  // what is normalised

  __device__ Values(const X* of_x, const T* of_gate, bool gate_first) {
    X some[kCount];
    T gates[kCount];
    load_values<kCount>(of_x, some);
    load_values<kCount>(of_gate, gates);
    for (int i = 0; i < kCount; ++i) {
      x[i] = to_float(some[i]);
      gate[i] = to_float(gates[i]);
      s[i] = 1.0f / (1.0f + expf(-gate[i]));
      silu[i] = gate[i] * s[i];
      value[i] = gate_first ? x[i] * silu[i] : x[i];
    }
  }
  // Returns the gradient of a gate from that of its silu.
  __device__ float through_silu(int i, float grad) const {
    return grad * s[i] * (1.0f + gate[i] * (1.0f - s[i]));
  }
};

// The places of a segment.
struct Place {
  int64_t element, gate, weight;

  __device__ Place(const GatedNorm& shape, bool gate_first, int64_t row, int64_t segment)
      : element((row * shape.segments + segment) * shape.width),
        gate(row * shape.gate_stride + segment * shape.width),
        weight(gate_first ? segment * shape.width : 0) {}
};

__device__ __forceinline__ float factor_of(const GatedNorm& shape, float squares) {
  return rsqrtf(squares / static_cast<float>(shape.width) + static_cast<float>(shape.eps));
}

// One block handles a segment; the grid covers them with strides.
template <typename X, typename T, int kCount, bool kGateFirst>
__global__ void forward(GatedNorm shape, const X* __restrict__ x, const T* __restrict__ gate,
                        const T* __restrict__ weight, T* __restrict__ y) {
  using In = Values<X, T, kCount>;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kCount;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  const int64_t all = shape.rows * shape.segments;
  for (int64_t segment = blockIdx.x; segment < all; segment += gridDim.x) {
    const Place at(shape, kGateFirst, segment / shape.segments, segment % shape.segments);
    float squares = 0.0f;
    for (int64_t i = begin; i < shape.width; i += step) {
      const In in(x + at.element + i, gate + at.gate + i, kGateFirst);
      for (int k = 0; k < kCount; ++k) squares += in.value[k] * in.value[k];
    }
    const float factor = factor_of(shape, over_block(squares, Add(), 0.0f));
    T weights[kCount], out[kCount];
    for (int64_t i = begin; i < shape.width; i += step) {
      const In in(x + at.element + i, gate + at.gate + i, kGateFirst);
      load_values<kCount>(weight + at.weight + i, weights);
      for (int k = 0; k < kCount; ++k) {
        const float normed = in.value[k] * factor, w = to_float(weights[k]);
        out[k] = rounded_to<T>(kGateFirst ? normed * w
                                          : in.silu[k] * rounded<T>(rounded<T>(normed) * w));
      }
      store_values<kCount>(y + at.element + i, out);
    }
  }
}

// Block (x, y) handles segment y of the `each` rows of piece x and adds their part of the weights'
// gradient to its own part of `partial`, each thread to its own elements.
template <typename X, typename T, int kCount, bool kGateFirst>
__global__ void backward(GatedNorm shape, int64_t each, const X* __restrict__ x,
                         const T* __restrict__ gate, const T* __restrict__ weight,
                         const T* __restrict__ grad, X* __restrict__ grad_x,
                         T* __restrict__ grad_gate, float* __restrict__ partial) {
  using In = Values<X, T, kCount>;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kCount;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  float sums[kCount] = {};
  float* const mine = partial == nullptr
                          ? nullptr
                          : partial + (blockIdx.x * shape.segments + blockIdx.y) * shape.width;
  for (int64_t i = begin; mine != nullptr && i < shape.width; i += step) {
    store_values<kCount>(mine + i, sums);
  }
  T uppers[kCount], weights[kCount], of_gate[kCount];
  X of_x[kCount];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * each;
  for (int64_t row = first; row < first + each && row < shape.rows; ++row) {
    const Place at(shape, kGateFirst, row, blockIdx.y);
    float squares = 0.0f, along = 0.0f;
    for (int64_t i = begin; i < shape.width; i += step) {
      const In in(x + at.element + i, gate + at.gate + i, kGateFirst);
      load_values<kCount>(grad + at.element + i, uppers);
      load_values<kCount>(weight + at.weight + i, weights);
      for (int k = 0; k < kCount; ++k) {
        const float inner = to_float(uppers[k]) * (kGateFirst ? 1.0f : in.silu[k]);
        squares += in.value[k] * in.value[k];
        along += inner * to_float(weights[k]) * in.value[k];
      }
    }
    const float factor = factor_of(shape, over_block(squares, Add(), 0.0f));
    const float mean = over_block(along, Add(), 0.0f) * factor / static_cast<float>(shape.width);
    for (int64_t i = begin; i < shape.width; i += step) {
      const In in(x + at.element + i, gate + at.gate + i, kGateFirst);
      load_values<kCount>(grad + at.element + i, uppers);
      load_values<kCount>(weight + at.weight + i, weights);
      if (mine != nullptr) load_values<kCount>(mine + i, sums);
      for (int k = 0; k < kCount; ++k) {
        const float upper = to_float(uppers[k]), w = to_float(weights[k]);
        const float inner = upper * (kGateFirst ? 1.0f : in.silu[k]);
        const float normed = in.value[k] * factor;
        sums[k] += inner * normed;
        const float outer = (inner * w - normed * mean) * factor;  // gradient of the value
        of_x[k] = rounded_to<X>(kGateFirst ? outer * in.silu[k] : outer);
        of_gate[k] =
            rounded_to<T>(in.through_silu(k, kGateFirst ? outer * in.x[k] : upper * normed * w));
      }
      if (mine != nullptr) store_values<kCount>(mine + i, sums);
      store_values<kCount>(grad_x + at.element + i, of_x);
      store_values<kCount>(grad_gate + at.element + i, of_gate);
    }
  }
}

// Whether all segments of these operands begin at a multiple of what a thread loads at a time.
bool takes_neighbours(const GatedNorm& shape, std::initializer_list<const void*> wide,
                      std::initializer_list<const void*> of_dtype) {
  const auto all = [](std::initializer_list<const void*> operands, uint64_t bytes) {
    for (const void* operand : operands) {
      if (reinterpret_cast<uintptr_t>(operand) % bytes != 0) return false;
    }
    return true;
  };
  const auto each = static_cast<uint64_t>(width_of(shape.dtype));
  const uint64_t of_x = shape.order == GateOrder::kGateFirst ? sizeof(float) : each;
  return shape.width % kNeighbours == 0 && shape.gate_stride % kNeighbours == 0 &&
         all(wide, kNeighbours * of_x) && all(of_dtype, kNeighbours * each);
}

// Calls body(X(), T(), the neighbours of a thread, whether the gate is first).
template <typename Body>
void with_instance(const GatedNorm& shape, bool neighbours, const Body& body) {
  const auto with_count = [&](auto of_x, auto type, auto gate_first) {
    if (neighbours) {
      body(of_x, type, std::integral_constant<int, kNeighbours>(), gate_first);
    } else {
      body(of_x, type, std::integral_constant<int, 1>(), gate_first);
    }
  };
  with_cuda_type(shape.dtype, [&](auto type) {
    if (shape.order == GateOrder::kGateFirst) {
      with_count(float(), type, std::true_type());
    } else {
      with_count(type, type, std::false_type());
    }
  });
}

unsigned threads_of(const GatedNorm& shape, int count) {
  return static_cast<unsigned>(threads_for((shape.width + count - 1) / count));
}

}  // namespace

void gated_norm_cuda(const GatedNorm& shape, const GatedNormInputs& inputs, void* y,
                     CUstream_st* stream) {
  if (shape.rows == 0) return;
  const bool neighbours = takes_neighbours(shape, {inputs.x}, {inputs.gate, inputs.weight, y});
  with_instance(shape, neighbours, [&](auto of_x, auto type, auto count, auto gate_first) {
    using X = decltype(of_x);
    using T = decltype(type);
    launch(forward<X, T, decltype(count)::value, decltype(gate_first)::value>,
           blocks_for(shape.rows * shape.segments), threads_of(shape, count), stream, shape,
           static_cast<const X*>(inputs.x), static_cast<const T*>(inputs.gate),
           static_cast<const T*>(inputs.weight), static_cast<T*>(y));
  });
  check_launch("gated_norm");
}

void gated_norm_backward_cuda(const GatedNorm& shape, const GatedNormInputs& inputs,
                              const void* grad, const GatedNormGradients& gradients,
                              CUstream_st* stream) {
  if (shape.rows == 0) return;
  const int64_t each = gated_norm_piece_rows(shape.rows), pieces = gated_norm_pieces(shape.rows);
  const bool neighbours = aligned(gradients.partial) &&
                          takes_neighbours(shape, {inputs.x, gradients.x},
                                           {inputs.gate, inputs.weight, grad, gradients.gate});
  with_instance(shape, neighbours, [&](auto of_x, auto type, auto count, auto gate_first) {
    using X = decltype(of_x);
    using T = decltype(type);
    launch(backward<X, T, decltype(count)::value, decltype(gate_first)::value>,
           dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(shape.segments)),
           threads_of(shape, count), stream, shape, each, static_cast<const X*>(inputs.x),
           static_cast<const T*>(inputs.gate), static_cast<const T*>(inputs.weight),
           static_cast<const T*>(grad), static_cast<X*>(gradients.x),
           static_cast<T*>(gradients.gate), gradients.partial);
  });
  check_launch("gated_norm_backward");
  if (gradients.partial == nullptr) return;
  const int64_t weights = shape.weights(), lines = pieces * shape.row_width() / weights;
  add_partials(lines, weights, gradients.partial, gradients.weight, stream);
  check_launch("gated_norm_backward, weight");
}

}  // namespace longshore::kernels
