#include "kernels/cuda_values.h"
#include "kernels/rms_norm.h"

namespace longshore::kernels {
namespace {

// One block for a row, over the rows by strides.
template <typename T>
__global__ void forward(RmsNorm shape, const T* __restrict__ x, const T* __restrict__ weight,
                        T* __restrict__ y) {
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* in = x + row * shape.width;
    T* out = y + row * shape.width;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) {
      const float value = to_float(in[i]);
      squares += value * value;
    }
    squares = over_block(squares, Add(), 0.0f);
    const float scale =
        rsqrtf(squares / static_cast<float>(shape.width) + static_cast<float>(shape.eps));
    for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) {
      out[i] = rounded_to<T>(rounded<T>(to_float(in[i]) * scale) * to_float(weight[i]));
    }
  }
}

// Block b takes rows b, b + gridDim.x, ... and adds their part of the weight's gradient to its own
// row of `partial`, each thread to its own columns.
template <typename T>
__global__ void backward(RmsNorm shape, const T* __restrict__ grad, const T* __restrict__ x,
                         const T* __restrict__ weight, T* __restrict__ grad_x,
                         float* __restrict__ partial) {
  float* const mine = partial == nullptr ? nullptr : partial + blockIdx.x * shape.width;
  const auto width = static_cast<float>(shape.width);
  if (mine != nullptr) {
    for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) mine[i] = 0.0f;
  }
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* in = x + row * shape.width;
    const T* upper = grad + row * shape.width;
    T* out = grad_x + row * shape.width;
    float squares = 0.0f;
    float along = 0.0f;
    for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) {
      const float value = to_float(in[i]);
      squares += value * value;
      along += to_float(upper[i]) * to_float(weight[i]) * value;
    }
    squares = over_block(squares, Add(), 0.0f);
    along = over_block(along, Add(), 0.0f);
    const float scale = rsqrtf(squares / width + static_cast<float>(shape.eps));
    along = along * scale / width;
    for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) {
      const float value = to_float(in[i]) * scale;
      const float g = to_float(upper[i]);
      if (mine != nullptr) mine[i] += g * value;
      out[i] = rounded_to<T>((g * to_float(weight[i]) - value * along) * scale);
    }
  }
}

// Columns of `partial`, row after row.
__global__ void add_partials(const float* __restrict__ partial, int64_t rows, int64_t width,
                             float* __restrict__ sum) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float value = 0.0f;
  for (int64_t row = 0; row < rows; ++row) value += partial[row * width + column];
  sum[column] += value;
}

}  // namespace

void rms_norm_cuda(const RmsNorm& shape, const void* x, const void* weight, void* y,
                   CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_cuda_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    launch(forward<T>, blocks_for(shape.rows), threads_for(shape.width), stream, shape,
           static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y));
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
  with_cuda_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    launch(backward<T>, summed ? static_cast<unsigned>(sums) : blocks_for(shape.rows),
           threads_for(shape.width), stream, shape, static_cast<const T*>(grad),
           static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(grad_x),
           summed ? partial : nullptr);
  });
  check_launch("rms_norm_backward");
  if (!summed) return;
  constexpr int kThreads = 128;
  launch(add_partials, static_cast<unsigned>((shape.width + kThreads - 1) / kThreads), kThreads,
         stream, partial, sums, shape.width, weight_sum);
  check_launch("rms_norm_backward, weight");
}

}  // namespace longshore::kernels
