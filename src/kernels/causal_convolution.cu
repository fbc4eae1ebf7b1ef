#include <initializer_list>

#include "kernels/causal_convolution.h"
#include "kernels/cuda_values.h"

namespace longshore::kernels {
namespace {

// A thread computes this many neighbouring channels if the alignment of the operands allows it, so
// that a warp reads whole cache lines, and several rows one after the other. It keeps values that
// the next rows need in registers.
constexpr int kPair = 2;
constexpr int kThreads = 64;
constexpr int64_t kForwardRows = 32;
constexpr int64_t kMostBlocks = 65535;  // of a grid's second dimension

__device__ __forceinline__ float sigmoid(float value) {
  return 1.0f / (1.0f + expf(-value));
}

// The latest rows of a thread's channels: `of[d]` is the row d rows ago.
template <int kTaps, int kCount>
struct Window {
  float of[kTaps][kCount];

  template <typename T>
  __device__ void push(const T (&values)[kCount]) {
    for (int d = kTaps - 1; d > 0; --d) {
      for (int i = 0; i < kCount; ++i) of[d][i] = of[d - 1][i];
    }
    for (int i = 0; i < kCount; ++i) of[0][i] = to_float(values[i]);
  }
};

// Weights of a thread's channels, by distance; those beyond the last tap are not used.
template <int kTaps, int kCount>
struct Weights {
  float taps[kTaps][kCount];
  float bias[kCount];

  template <typename T>
  __device__ Weights(const CausalConvolution& shape, const T* all, const T* biases,
                     int64_t channel) {
    for (int i = 0; i < kCount; ++i) {
      for (int d = 0; d < kTaps; ++d) {
        const int64_t tap = shape.count - 1 - d;
        taps[d][i] = tap < 0 ? 0.0f : to_float(all[(channel + i) * shape.count + tap]);
      }
      bias[i] = biases == nullptr ? 0.0f : to_float(biases[channel + i]);
    }
  }
  // Returns the rounded sums of the latest row, which reads `reach` earlier rows.
  template <typename T>
  __device__ void sums(const Window<kTaps, kCount>& x, int reach, bool biased,
                       float (&out)[kCount]) const {
    for (int i = 0; i < kCount; ++i) {
      float sum = x.of[0][i] * taps[0][i];
      for (int d = 1; d < kTaps; ++d) {
        if (d <= reach) sum += x.of[d][i] * taps[d][i];
      }
      if (biased) sum += bias[i];
      out[i] = rounded<T>(sum);
    }
  }
};

// Returns how many earlier rows a row reads.
__device__ __forceinline__ int reach_of(const CausalConvolution& shape, const int64_t* positions,
                                        int64_t row) {
  int64_t reach = shape.count - 1;
  if (row < reach) reach = row;
  if (positions[row] < reach) reach = positions[row];
  return static_cast<int>(reach);
}

// Fills a window with the rows before `row`, and zeros where there are none.
template <typename T, int kTaps, int kCount>
__device__ __forceinline__ void fill(const CausalConvolution& shape, const T* x, int64_t row,
                                     Window<kTaps, kCount>& window) {
  T values[kCount];
  for (int d = kTaps - 1; d > 0; --d) {
    if (d < shape.count && row >= d) {
      load_values<kCount>(x + (row - d) * shape.row_stride, values);
    } else {
      for (int i = 0; i < kCount; ++i) values[i] = rounded_to<T>(0.0f);
    }
    window.push(values);
  }
}

// Block (x, y) handles channels of a part of the row and `each` rows from y * each on.
template <typename T, int kTaps, int kCount>
__global__ void forward(CausalConvolution shape, int64_t each, const T* __restrict__ x,
                        const T* __restrict__ taps, const T* __restrict__ bias,
                        const int64_t* __restrict__ positions, T* __restrict__ y) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kCount;
  if (channel >= shape.channels) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * each;
  const int64_t end = begin + each < shape.rows ? begin + each : shape.rows;
  const Weights<kTaps, kCount> weights(shape, taps, bias, channel);
  Window<kTaps, kCount> window = {};
  fill(shape, x + channel, begin, window);
  T values[kCount];
  float sums[kCount];
  for (int64_t row = begin; row < end; ++row) {
    load_values<kCount>(x + row * shape.row_stride + channel, values);
    window.push(values);
    weights.template sums<T>(window, reach_of(shape, positions, row), bias != nullptr, sums);
    for (int i = 0; i < kCount; ++i) {
      values[i] = rounded_to<T>(shape.activated ? sums[i] * sigmoid(sums[i]) : sums[i]);
    }
    store_values<kCount>(y + row * shape.channels + channel, values);
  }
}

// Block (x, y) handles channels of a part of the row and piece y, of `each` rows. It goes kTaps - 1
// rows beyond the piece, because the last rows' gradients need what those give.
template <typename T, int kTaps, int kCount>
__global__ void backward(CausalConvolution shape, int64_t each, const T* __restrict__ x,
                         const T* __restrict__ taps, const T* __restrict__ bias,
                         const int64_t* __restrict__ positions, const T* __restrict__ grad,
                         T* __restrict__ grad_x, float* __restrict__ partial) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kCount;
  if (channel >= shape.channels) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * each;
  const int64_t end = begin + each < shape.rows ? begin + each : shape.rows;
  const Weights<kTaps, kCount> weights(shape, taps, bias, channel);
  Window<kTaps, kCount> before = {}, inner = {};  // rows of x, and gradients of the sums
  int reaches[kTaps] = {};                        // of the latest rows
  float sums[kTaps][kCount] = {}, bias_sums[kCount] = {};
  fill(shape, x + channel, begin, before);
  T values[kCount], uppers[kCount];
  float total[kCount];
  const int64_t last = grad_x == nullptr ? end : end + kTaps - 1;
  for (int64_t row = begin; row < last; ++row) {
    for (int d = kTaps - 1; d > 0; --d) reaches[d] = reaches[d - 1];
    for (int i = 0; i < kCount; ++i) total[i] = 0.0f;
    reaches[0] = 0;
    if (row < shape.rows) {
      reaches[0] = reach_of(shape, positions, row);
      load_values<kCount>(x + row * shape.row_stride + channel, values);
      load_values<kCount>(grad + row * shape.channels + channel, uppers);
      before.push(values);
      if (shape.activated) {
        weights.template sums<T>(before, reaches[0], bias != nullptr, total);
        for (int i = 0; i < kCount; ++i) {
          const float s = sigmoid(total[i]);
          total[i] = rounded<T>(to_float(uppers[i]) * s * (1.0f + total[i] * (1.0f - s)));
        }
      } else {
        for (int i = 0; i < kCount; ++i) total[i] = to_float(uppers[i]);
      }
    }
    inner.push(total);
    if (row < end) {
      for (int i = 0; i < kCount; ++i) {
        for (int d = 0; d < kTaps; ++d) {
          if (d <= reaches[0]) sums[d][i] += total[i] * before.of[d][i];
        }
        bias_sums[i] += total[i];
      }
    }
    if (grad_x == nullptr || row < begin + kTaps - 1) continue;
    for (int i = 0; i < kCount; ++i) {
      float value = inner.of[kTaps - 1][i] * weights.taps[0][i];
      for (int d = 1; d < kTaps; ++d) {
        if (d <= reaches[kTaps - 1 - d]) {
          value += inner.of[kTaps - 1 - d][i] * weights.taps[d][i];
        }
      }
      values[i] = rounded_to<T>(value);
    }
    store_values<kCount>(grad_x + (row - (kTaps - 1)) * shape.channels + channel, values);
  }
  if (partial == nullptr) return;
  float* const to = partial + blockIdx.y * (shape.count + 1) * shape.channels + channel;
  for (int d = 0; d < kTaps; ++d) {
    if (d < shape.count) store_values<kCount>(to + d * shape.channels, sums[d]);
  }
  store_values<kCount>(to + shape.count * shape.channels, bias_sums);
}

// Adds the pieces in order, one thread for each weight.
__global__ void add_partials(CausalConvolution shape, int64_t pieces,
                             const float* __restrict__ partial, float* __restrict__ taps,
                             float* __restrict__ bias) {
  const int64_t row = (shape.count + 1) * shape.channels;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= row) return;
  const int64_t distance = at / shape.channels, channel = at % shape.channels;
  float* const to = distance == shape.count
                        ? (bias == nullptr ? nullptr : bias + channel)
                        : taps + channel * shape.count + shape.count - 1 - distance;
  if (to == nullptr) return;
  float value = 0.0f;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    value += partial[piece * row + at];
  }
  *to += value;
}

// Whether all rows of these operands begin at a multiple of a pair's bytes.
bool takes_pairs(const CausalConvolution& shape, std::initializer_list<const void*> operands) {
  const auto bytes = static_cast<uintptr_t>(kPair * width_of(shape.dtype));
  for (const void* operand : operands) {
    if (reinterpret_cast<uintptr_t>(operand) % bytes != 0) return false;
  }
  return shape.channels % kPair == 0 && shape.row_stride % kPair == 0;
}

// Calls body(T(), the taps that a thread has registers for, the channels of a thread).
template <typename Body>
void with_instance(const CausalConvolution& shape, bool pairs, const Body& body) {
  LONGSHORE_CHECK(shape.count > 0 && shape.count <= kMostTaps) << shape.count << " taps";
  constexpr int kFew = 4;
  const auto with_taps = [&](auto type, auto count) {
    if (shape.count <= kFew) {
      body(type, std::integral_constant<int, kFew>(), count);
    } else {
      body(type, std::integral_constant<int, static_cast<int>(kMostTaps)>(), count);
    }
  };
  with_cuda_type(shape.dtype, [&](auto type) {
    if (pairs) {
      with_taps(type, std::integral_constant<int, kPair>());
    } else {
      with_taps(type, std::integral_constant<int, 1>());
    }
  });
}

dim3 grid_of(const CausalConvolution& shape, int count, int64_t pieces) {
  const int64_t channels = int64_t{kThreads} * count;
  return dim3(static_cast<unsigned>((shape.channels + channels - 1) / channels),
              static_cast<unsigned>(pieces));
}

}  // namespace

void causal_convolution_cuda(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                             void* y, CUstream_st* stream) {
  if (shape.rows == 0) return;
  const int64_t each = std::max(kForwardRows, (shape.rows + kMostBlocks - 1) / kMostBlocks);
  with_instance(shape, takes_pairs(shape, {inputs.x, y}), [&](auto type, auto taps, auto count) {
    using T = decltype(type);
    launch(forward<T, decltype(taps)::value, decltype(count)::value>,
           grid_of(shape, count, (shape.rows + each - 1) / each), kThreads, stream, shape, each,
           static_cast<const T*>(inputs.x), static_cast<const T*>(inputs.taps),
           static_cast<const T*>(inputs.bias), inputs.positions, static_cast<T*>(y));
  });
  check_launch("causal_convolution");
}

void causal_convolution_backward_cuda(const CausalConvolution& shape,
                                      const ConvolutionInputs& inputs, const void* grad,
                                      const ConvolutionGradients& gradients, CUstream_st* stream) {
  if (shape.rows == 0) return;
  const int64_t each = convolution_piece_rows(shape.rows);
  const int64_t pieces = convolution_pieces(shape.rows);
  const bool pairs = takes_pairs(shape, {inputs.x, grad, gradients.x}) &&
                     reinterpret_cast<uintptr_t>(gradients.partial) % (kPair * sizeof(float)) == 0;
  with_instance(shape, pairs, [&](auto type, auto taps, auto count) {
    using T = decltype(type);
    launch(backward<T, decltype(taps)::value, decltype(count)::value>,
           grid_of(shape, count, pieces), kThreads, stream, shape, each,
           static_cast<const T*>(inputs.x), static_cast<const T*>(inputs.taps),
           static_cast<const T*>(inputs.bias), inputs.positions, static_cast<const T*>(grad),
           static_cast<T*>(gradients.x), gradients.partial);
  });
  check_launch("causal_convolution_backward");
  if (gradients.partial == nullptr) return;
  const int64_t weights = (shape.count + 1) * shape.channels;
  launch(add_partials, static_cast<unsigned>((weights + kThreads - 1) / kThreads), kThreads, stream,
         shape, pieces, gradients.partial, gradients.taps, gradients.bias);
  check_launch("causal_convolution_backward, weights");
}

}  // namespace longshore::kernels
