#include <algorithm>
#include <initializer_list>

#include "kernels/cuda_values.h"
#include "kernels/rms_norm.h"

namespace longshore::kernels {
namespace {

// One block handles a row; the grid covers the rows with strides. A thread handles kCount
// neighbours at a time; the width is a multiple of kCount.
template <typename T, int kCount>
__global__ void forward(RmsNorm shape, const T* __restrict__ x, const T* __restrict__ weight,
                        T* __restrict__ y) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* in = x + row * shape.width;
    T* out = y + row * shape.width;
    float squares = 0.0f;
    T values[kCount];
    for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      for (int i = 0; i < kCount; ++i) squares += to_float(values[i]) * to_float(values[i]);
    }
    squares = over_block(squares, Add(), 0.0f);
    const float scale =
        rsqrtf(squares / static_cast<float>(shape.width) + static_cast<float>(shape.eps));
    T weights[kCount];
    for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      load_values<kCount>(weight + at, weights);
      for (int i = 0; i < kCount; ++i) {
        values[i] = rounded_to<T>(rounded<T>(to_float(values[i]) * scale) * to_float(weights[i]));
      }
      store_values<kCount>(out + at, values);
    }
  }
}

// Block b handles rows b, b + gridDim.x, ... and adds their part of the weight's gradient to its
// own row of `partial`, each thread to its own columns.
template <typename T, int kCount>
__global__ void backward(RmsNorm shape, const T* __restrict__ grad, const T* __restrict__ x,
                         const T* __restrict__ weight, T* __restrict__ grad_x,
                         float* __restrict__ partial) {
  float* const mine = partial == nullptr ? nullptr : partial + blockIdx.x * shape.width;
  const auto width = static_cast<float>(shape.width);
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kCount;
  float sums[kCount] = {};
  for (int64_t at = begin; mine != nullptr && at < shape.width; at += step) {
    store_values<kCount>(mine + at, sums);
  }
  T values[kCount], uppers[kCount], weights[kCount];
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* in = x + row * shape.width;
    const T* upper = grad + row * shape.width;
    T* out = grad_x + row * shape.width;
    float squares = 0.0f;
    float along = 0.0f;
    for (int64_t at = begin; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      load_values<kCount>(upper + at, uppers);
      load_values<kCount>(weight + at, weights);
      for (int i = 0; i < kCount; ++i) {
        const float value = to_float(values[i]);
        squares += value * value;
        along += to_float(uppers[i]) * to_float(weights[i]) * value;
      }
    }
    squares = over_block(squares, Add(), 0.0f);
    along = over_block(along, Add(), 0.0f);
    const float scale = rsqrtf(squares / width + static_cast<float>(shape.eps));
    along = along * scale / width;
    for (int64_t at = begin; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      load_values<kCount>(upper + at, uppers);
      load_values<kCount>(weight + at, weights);
      if (mine != nullptr) load_values<kCount>(mine + at, sums);
      for (int i = 0; i < kCount; ++i) {
        const float value = to_float(values[i]) * scale;
        const float g = to_float(uppers[i]);
        sums[i] += g * value;
        values[i] = rounded_to<T>((g * to_float(weights[i]) - value * along) * scale);
      }
      if (mine != nullptr) store_values<kCount>(mine + at, sums);
      store_values<kCount>(out + at, values);
    }
  }
}

// Adds the rows of `partial` in order, one thread for each column.
__global__ void add_partials(const float* __restrict__ partial, int64_t rows, int64_t width,
                             float* __restrict__ sum) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float value = 0.0f;
  for (int64_t row = 0; row < rows; ++row) value += partial[row * width + column];
  sum[column] += value;
}

// All rows are 16-byte aligned if the first is and a row's bytes are a multiple of 16.
bool takes_lots(const RmsNorm& shape, std::initializer_list<const void*> operands) {
  return shape.width * width_of(shape.dtype) % 16 == 0 && std::ranges::all_of(operands, aligned);
}

int threads_of(const RmsNorm& shape, int count) {
  return threads_for((shape.width + count - 1) / count);
}

}  // namespace

void rms_norm_cuda(const RmsNorm& shape, const void* x, const void* weight, void* y,
                   CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_cuda_width(shape.dtype, takes_lots(shape, {x, weight, y}), [&](auto type, auto count) {
    using T = decltype(type);
    launch(forward<T, decltype(count)::value>, blocks_for(shape.rows), threads_of(shape, count),
           stream, shape, static_cast<const T*>(x), static_cast<const T*>(weight),
           static_cast<T*>(y));
  });
  check_launch("rms_norm");
}

void rms_norm_backward_cuda(const RmsNorm& shape, const void* grad, const void* x,
                            const void* weight, void* grad_x, float* weight_sum, float* partial,
                            CUstream_st* stream) {
  if (shape.rows == 0) return;
  const bool summed = weight_sum != nullptr;
  LONGSHORE_CHECK(!summed || partial != nullptr) << "the weight's gradient needs scratch";
  const int64_t sums = rms_norm_partial_elements(shape.rows, 1);
  const bool lots = takes_lots(shape, {grad, x, weight, grad_x, summed ? partial : nullptr});
  with_cuda_width(shape.dtype, lots, [&](auto type, auto count) {
    using T = decltype(type);
    launch(backward<T, decltype(count)::value>,
           summed ? static_cast<unsigned>(sums) : blocks_for(shape.rows), threads_of(shape, count),
           stream, shape, static_cast<const T*>(grad), static_cast<const T*>(x),
           static_cast<const T*>(weight), static_cast<T*>(grad_x), summed ? partial : nullptr);
  });
  check_launch("rms_norm_backward");
  if (!summed) return;
  constexpr int kThreads = 128;
  launch(add_partials, static_cast<unsigned>((shape.width + kThreads - 1) / kThreads), kThreads,
         stream, partial, sums, shape.width, weight_sum);
  check_launch("rms_norm_backward, weight");
}

}  // namespace longshore::kernels
