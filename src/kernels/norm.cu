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

// The sums over a row from which its gradient follows.
struct RowSums {
  float squares = 0.0f;  // of the values less the mean
  float along = 0.0f;    // of h * (value less the mean), with h = grad * (offset + weight)
  float level = 0.0f;    // of h
};

// Adds the terms of kCount neighbours to a thread's part of the sums.
template <int kCount, typename T>
__device__ __forceinline__ void add_terms(const Norm& shape, float mean, const T (&values)[kCount],
                                          const T (&uppers)[kCount], const T (&weights)[kCount],
                                          RowSums& sums) {
  for (int i = 0; i < kCount; ++i) {
    const float value = to_float(values[i]) - mean;
    const float h = to_float(uppers[i]) * (shape.offset + to_float(weights[i]));
    sums.squares += value * value;
    sums.along += h * value;
    sums.level += h;
  }
}

// RowFactors holds what all values of a row contribute to the gradient of each.
struct RowFactors {
  float mean, scale, along, level;
};

// Returns the row's factors from all threads' sums, to every thread of the block.
__device__ __forceinline__ RowFactors factors_of(const Norm& shape, float mean, RowSums sums) {
  const auto width = static_cast<float>(shape.width);
  sums.squares = over_block(sums.squares, Add(), 0.0f);
  sums.along = over_block(sums.along, Add(), 0.0f);
  const float level = shape.centred ? over_block(sums.level, Add(), 0.0f) / width : 0.0f;
  const float scale = rsqrtf(sums.squares / width + static_cast<float>(shape.eps));
  return {mean, scale, sums.along * scale / width, level};
}

// Replaces kCount values of x by their gradients; gives the terms of the gradients of weight and
// bias.
template <int kCount, typename T>
__device__ __forceinline__ void differentiate(const Norm& shape, const RowFactors& row,
                                              T (&values)[kCount], const T (&uppers)[kCount],
                                              const T (&weights)[kCount],
                                              float (&weight_terms)[kCount],
                                              float (&bias_terms)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    const float value = (to_float(values[i]) - row.mean) * row.scale;
    const float h = to_float(uppers[i]) * (shape.offset + to_float(weights[i]));
    bias_terms[i] = to_float(uppers[i]);
    weight_terms[i] = bias_terms[i] * value;
    values[i] = rounded_to<T>((h - row.level - value * row.along) * row.scale);
  }
}

// Block b handles rows b, b + gridDim.x, ... of at most kLots lots for each thread. A thread holds
// its part of a row, and its columns of the sums over rows, in registers: a row is read once, and
// the block's row of each `partial` is written once.
template <typename T, int kCount, int kLots>
__global__ void backward_in_registers(Norm shape, const T* __restrict__ grad,
                                      const T* __restrict__ x, const T* __restrict__ weight,
                                      T* __restrict__ grad_x, float* __restrict__ weight_partial,
                                      float* __restrict__ bias_partial) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kCount;
  T values[kLots][kCount] = {}, uppers[kLots][kCount] = {}, weights[kLots][kCount] = {};
  float weight_sums[kLots][kCount] = {}, bias_sums[kLots][kCount] = {};
  for (int lot = 0; lot < kLots; ++lot) {
    const int64_t at = begin + lot * step;
    if (at < shape.width) load_values<kCount>(weight + at, weights[lot]);
  }
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t first = row * shape.width;
    const float mean = mean_of<kCount>(shape, x + first);
    RowSums sums;
    for (int lot = 0; lot < kLots; ++lot) {
      const int64_t at = begin + lot * step;
      if (at >= shape.width) continue;
      load_values<kCount>(x + first + at, values[lot]);
      load_values<kCount>(grad + first + at, uppers[lot]);
      add_terms<kCount>(shape, mean, values[lot], uppers[lot], weights[lot], sums);
    }
    const RowFactors factors = factors_of(shape, mean, sums);
    for (int lot = 0; lot < kLots; ++lot) {
      const int64_t at = begin + lot * step;
      if (at >= shape.width) continue;
      float weight_terms[kCount], bias_terms[kCount];
      differentiate<kCount>(shape, factors, values[lot], uppers[lot], weights[lot], weight_terms,
                            bias_terms);
      for (int i = 0; i < kCount; ++i) weight_sums[lot][i] += weight_terms[i];
      for (int i = 0; i < kCount; ++i) bias_sums[lot][i] += bias_terms[i];
      store_values<kCount>(grad_x + first + at, values[lot]);
    }
  }
  const int64_t own = blockIdx.x * shape.width;
  for (int lot = 0; lot < kLots; ++lot) {
    const int64_t at = begin + lot * step;
    if (at >= shape.width) continue;
    if (weight_partial != nullptr) {
      store_values<kCount>(weight_partial + own + at, weight_sums[lot]);
    }
    if (bias_partial != nullptr) store_values<kCount>(bias_partial + own + at, bias_sums[lot]);
  }
}

// This kernel takes rows of any width: a thread adds to its columns of the sums in memory.
template <typename T, int kCount>
__global__ void backward(Norm shape, const T* __restrict__ grad, const T* __restrict__ x,
                         const T* __restrict__ weight, T* __restrict__ grad_x,
                         float* __restrict__ weight_partial, float* __restrict__ bias_partial) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kCount;
  const int64_t own = blockIdx.x * shape.width;
  float* const weight_sums = weight_partial == nullptr ? nullptr : weight_partial + own;
  float* const bias_sums = bias_partial == nullptr ? nullptr : bias_partial + own;
  clear_columns<kCount>(weight_sums, shape.width);
  clear_columns<kCount>(bias_sums, shape.width);
  T values[kCount], uppers[kCount], weights[kCount];
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t first = row * shape.width;
    const float mean = mean_of<kCount>(shape, x + first);
    RowSums sums;
    for (int64_t at = begin; at < shape.width; at += step) {
      load_values<kCount>(x + first + at, values);
      load_values<kCount>(grad + first + at, uppers);
      load_values<kCount>(weight + at, weights);
      add_terms<kCount>(shape, mean, values, uppers, weights, sums);
    }
    const RowFactors factors = factors_of(shape, mean, sums);
    for (int64_t at = begin; at < shape.width; at += step) {
      load_values<kCount>(x + first + at, values);
      load_values<kCount>(grad + first + at, uppers);
      load_values<kCount>(weight + at, weights);
      float weight_terms[kCount], bias_terms[kCount];
      differentiate<kCount>(shape, factors, values, uppers, weights, weight_terms, bias_terms);
      add_values<kCount>(weight_sums, at, weight_terms);
      add_values<kCount>(bias_sums, at, bias_terms);
      store_values<kCount>(grad_x + first + at, values);
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
    constexpr int kCount = decltype(count)::value;
    const int64_t lots_of_row = (shape.width + kCount - 1) / kCount;
    const auto run = [&](auto kernel, unsigned threads) {
      launch(kernel, summed ? static_cast<unsigned>(sums) : blocks_for(shape.rows), threads, stream,
             shape, static_cast<const T*>(grad), static_cast<const T*>(x),
             static_cast<const T*>(weight), static_cast<T*>(grad_x), of_weight, of_bias);
    };
    if (lots_of_row <= kMostThreads) {
      // A thread has one lot here, where threads_for counts on four.
      run(backward_in_registers<T, kCount, 1>, static_cast<unsigned>(threads_for(4 * lots_of_row)));
    } else if (lots_of_row <= 2 * kMostThreads) {
      run(backward_in_registers<T, kCount, 2>, kMostThreads);
    } else {
      run(backward<T, kCount>, static_cast<unsigned>(threads_of(shape, kCount)));
    }
  });
  check_launch("norm_backward");
  if (weight_sum != nullptr) add_partials(sums, shape.width, of_weight, weight_sum, stream);
  if (bias_sum != nullptr) add_partials(sums, shape.width, of_bias, bias_sum, stream);
  if (summed) check_launch("norm_backward, sums");
}

}  // namespace longshore::kernels
