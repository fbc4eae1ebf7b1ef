#include <math_constants.h>

#include "kernels/cross_entropy.h"
#include "kernels/cuda_values.h"

namespace longshore::kernels {
namespace {

// One block for a row. The first pass keeps a running maximum and a sum scaled to it.
template <typename T>
__global__ void loss_and_gradient(CrossEntropy shape, T* __restrict__ logits,
                                  const int64_t* __restrict__ targets, float* __restrict__ losses) {
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    T* const values = logits + row * shape.vocabulary;
    const int64_t target = targets[row];
    // A target outside the vocabulary is a fault of the caller's: a trap ends the run.
    if (target < 0 || target >= shape.vocabulary) __trap();
    float most = -CUDART_INF_F;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < shape.vocabulary; i += blockDim.x) {
      const float value = to_float(values[i]);
      if (value > most) {
        sum = sum * expf(most - value) + 1.0f;
        most = value;
      } else if (most != -CUDART_INF_F || isnan(value)) {
        sum += expf(value - most);
      }
    }
    const float row_most = over_block(most, Most(), -CUDART_INF_F);
    if (most != -CUDART_INF_F) sum *= expf(most - row_most);
    sum = over_block(sum, Add(), 0.0f);
    if (threadIdx.x == 0) losses[row] = logf(sum) - (to_float(values[target]) - row_most);
    if (!shape.gradient) continue;
    __syncthreads();  // the target's logit was read
    const auto scale = static_cast<float>(shape.scale);
    for (int64_t i = threadIdx.x; i < shape.vocabulary; i += blockDim.x) {
      const float probability = expf(to_float(values[i]) - row_most) / sum;
      values[i] = rounded_to<T>((probability - (i == target ? 1.0f : 0.0f)) * scale);
    }
  }
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& shape, void* logits, const int64_t* targets,
                        float* losses, CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_cuda_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    launch(loss_and_gradient<T>, blocks_for(shape.rows), threads_for(shape.vocabulary), stream,
           shape, static_cast<T*>(logits), targets, losses);
  });
  check_launch("cross_entropy");
}

}  // namespace longshore::kernels
