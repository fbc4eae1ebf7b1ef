#include <algorithm>
#include <initializer_list>

#include "kernels/cuda_values.h"
#include "kernels/norm.h"
#include "kernels/partial_sums.h"

namespace longshore::kernels {
namespace {

// Returns the sum over a row of power(value - mean), each thread in the order of its values.
template <int kCount, typename T, typename Power>
__device__ __forceinline__ float over_row(const T* row, int64_t width, float mean, Power power) {
  float total = 0.0f;
  T values[kCount];
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < width; at += step) {
    load_values<kCount>(row + at, values);
    for (int i = 0; i < kCount; ++i) total += power(to_float(values[i]) - mean);
  }
  return over_block(total, Add(), 0.0f);
}

struct Itself {
  __device__ float operator()(float value) const { return value; }
};
struct Square {
  __device__ float operator()(float value) const { return value * value; }
};

// Returns the mean that is subtracted from a row.
template <int kCount, typename T>
__device__ __forceinline__ float mean_of(const Norm& shape, const T* row) {
  if (!shape.centred) return 0.0f;
  return over_row<kCount>(row, shape.width, 0.0f, Itself()) / static_cast<float>(shape.width);
}

// One block handles a row; the grid covers the rows with strides. A thread handles kCount
// neighbours at a time; the width is a multiple of kCount.
template <typename T, int kCount>
__global__ void forward(Norm shape, const T* __restrict__ x, const T* __restrict__ weight,
                        const T* __restrict__ bias, T* __restrict__ y) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* in = x + row * shape.width;
    T* out = y + row * shape.width;
    const float mean = mean_of<kCount>(shape, in);
    const float squares = over_row<kCount>(in, shape.width, mean, Square());
    const float scale =
        rsqrtf(squares / static_cast<float>(shape.width) + static_cast<float>(shape.eps));
    T values[kCount], weights[kCount], biases[kCount];
    for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      load_values<kCount>(weight + at, weights);
      if (bias != nullptr) load_values<kCount>(bias + at, biases);
      for (int i = 0; i < kCount; ++i) {
        float value = (to_float(values[i]) - mean) * scale;
        if (shape.rounds) value = rounded<T>(value);
        value *= shape.offset + to_float(weights[i]);
        if (bias != nullptr) value += to_float(biases[i]);
        values[i] = rounded_to<T>(value);
      }
      store_values<kCount>(out + at, values);
    }
  }
}

// Sets a thread's columns of a row of partial sums to zero, unless the sums are not wanted.
template <int kCount>
__device__ __forceinline__ void clear_columns(float* sums, int64_t width) {
  const float zeros[kCount] = {};
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; sums != nullptr && at < width;
       at += step) {
    store_values<kCount>(sums + at, zeros);
  }
}

// Adds to kCount partial sums of a thread, unless they are not wanted.
template <int kCount>
__device__ __forceinline__ void add_values(float* sums, int64_t at, const float (&values)[kCount]) {
  if (sums == nullptr) return;
  float before[kCount];
  load_values<kCount>(sums + at, before);
  for (int i = 0; i < kCount; ++i) before[i] += values[i];
  store_values<kCount>(sums + at, before);
}

// Block b handles rows b, b + gridDim.x, ... and adds their part of the gradients of weight and
// bias to its own row of each `partial`, each thread to its own columns.
template <typename T, int kCount>
__global__ void backward(Norm shape, const T* __restrict__ grad, const T* __restrict__ x,
                         const T* __restrict__ weight, T* __restrict__ grad_x,
                         float* __restrict__ weight_partial, float* __restrict__ bias_partial) {
  const auto width = static_cast<float>(shape.width);
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kCount;
  const int64_t own = blockIdx.x * shape.width;
  float* const weight_sums = weight_partial == nullptr ? nullptr : weight_partial + own;
  float* const bias_sums = bias_partial == nullptr ? nullptr : bias_partial + own;
  clear_columns<kCount>(weight_sums, shape.width);
  clear_columns<kCount>(bias_sums, shape.width);
  T values[kCount], uppers[kCount], weights[kCount];
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* in = x + row * shape.width;
    const T* upper = grad + row * shape.width;
    T* out = grad_x + row * shape.width;
    const float mean = mean_of<kCount>(shape, in);
    float squares = 0.0f;
    float along = 0.0f;
    float level = 0.0f;
    for (int64_t at = begin; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      load_values<kCount>(upper + at, uppers);
      load_values<kCount>(weight + at, weights);
      for (int i = 0; i < kCount; ++i) {
        const float value = to_float(values[i]) - mean;
        const float h = to_float(uppers[i]) * (shape.offset + to_float(weights[i]));
        squares += value * value;
        along += h * value;
        level += h;
      }
    }
    squares = over_block(squares, Add(), 0.0f);
    along = over_block(along, Add(), 0.0f);
    level = shape.centred ? over_block(level, Add(), 0.0f) / width : 0.0f;
    const float scale = rsqrtf(squares / width + static_cast<float>(shape.eps));
    along = along * scale / width;
    for (int64_t at = begin; at < shape.width; at += step) {
      load_values<kCount>(in + at, values);
      load_values<kCount>(upper + at, uppers);
      load_values<kCount>(weight + at, weights);
      float above[kCount], products[kCount];
      for (int i = 0; i < kCount; ++i) {
        const float value = (to_float(values[i]) - mean) * scale;
        const float h = to_float(uppers[i]) * (shape.offset + to_float(weights[i]));
        above[i] = to_float(uppers[i]);
        products[i] = above[i] * value;
        values[i] = rounded_to<T>((h - level - value * along) * scale);
      }
      add_values<kCount>(weight_sums, at, products);
      add_values<kCount>(bias_sums, at, above);
      store_values<kCount>(out + at, values);
    }
  }
}

// All rows are 16-byte aligned if the first is and a row's bytes are a multiple of 16.
bool takes_lots(const Norm& shape, std::initializer_list<const void*> operands) {
  return shape.width * width_of(shape.dtype) % 16 == 0 && std::ranges::all_of(operands, aligned);
}

int threads_of(const Norm& shape, int count) {
  return threads_for((shape.width + count - 1) / count);
}

}  // namespace

void norm_cuda(const Norm& shape, const void* x, const void* weight, const void* bias, void* y,
               CUstream_st* stream) {
  if (shape.rows == 0) return;
  const bool lots = takes_lots(shape, {x, weight, y, bias});
  with_cuda_width(shape.dtype, lots, [&](auto type, auto count) {
    using T = decltype(type);
    launch(forward<T, decltype(count)::value>, blocks_for(shape.rows), threads_of(shape, count),
           stream, shape, static_cast<const T*>(x), static_cast<const T*>(weight),
           static_cast<const T*>(bias), static_cast<T*>(y));
  });
  check_launch("norm");
}

void norm_backward_cuda(const Norm& shape, const void* grad, const void* x, const void* weight,
                        void* grad_x, float* weight_sum, float* bias_sum, float* partial,
                        CUstream_st* stream) {
  if (shape.rows == 0) return;
  const bool summed = weight_sum != nullptr || bias_sum != nullptr;
  LONGSHORE_CHECK(!summed || partial != nullptr) << "the parameters' gradients need scratch";
  const int64_t sums = norm_partials(shape.rows, shape.width);
  float* const of_weight = weight_sum == nullptr ? nullptr : partial;
  float* const of_bias =
      bias_sum == nullptr ? nullptr : partial + (weight_sum == nullptr ? 0 : sums * shape.width);
  const bool lots = takes_lots(shape, {grad, x, weight, grad_x, of_weight, of_bias});
  with_cuda_width(shape.dtype, lots, [&](auto type, auto count) {
    using T = decltype(type);
    launch(backward<T, decltype(count)::value>,
           summed ? static_cast<unsigned>(sums) : blocks_for(shape.rows), threads_of(shape, count),
           stream, shape, static_cast<const T*>(grad), static_cast<const T*>(x),
           static_cast<const T*>(weight), static_cast<T*>(grad_x), of_weight, of_bias);
  });
  check_launch("norm_backward");
  if (weight_sum != nullptr) add_partials(sums, shape.width, of_weight, weight_sum, stream);
  if (bias_sum != nullptr) add_partials(sums, shape.width, of_bias, bias_sum, stream);
  if (summed) check_launch("norm_backward, sums");
}

}  // namespace longshore::kernels
