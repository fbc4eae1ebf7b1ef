#include <math_constants.h>

#include "kernels/cross_entropy.h"
#include "kernels/cuda_values.h"

namespace longshore::kernels {
namespace {

// A thread's running maximum of a row, and its sum of exponentials relative to that maximum.
struct Seen {
  float most;
  float sum;

  template <int kCount, typename T>
  __device__ void add(const T (&values)[kCount]) {
    float larger = most;
    for (int i = 0; i < kCount; ++i) {
      const float value = to_float(values[i]);
      larger = value > larger ? value : larger;
    }
    if (larger > most) {
      sum *= expf(most - larger);
      most = larger;
    }
    for (int i = 0; i < kCount; ++i) {
      const float value = to_float(values[i]);
      // This adds nothing while all values are minus infinity, but a NaN always reaches the sum.
      if (most != -CUDART_INF_F || isnan(value)) sum += expf(value - most);
    }
  }
};

// Splits a row for 16-byte loads: single values before the aligned part, lots, single values after.
template <typename T>
struct RowLots {
  int64_t head, lots, tail;  // values before the lots, number of lots, first value after the lots

  __device__ RowLots(const T* row, int64_t count) {
    constexpr int kLot = Lot<T>::kCount;
    const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kLot);
    head = (kLot - place) % kLot;
    if (head > count) head = count;
    lots = (count - head) / kLot;
    tail = head + lots * kLot;
  }
};

// One block handles a row. The first pass keeps a running maximum and a sum relative to it.
template <typename T>
__global__ void loss_and_gradient(CrossEntropy shape, T* __restrict__ logits,
                                  const int64_t* __restrict__ targets, float* __restrict__ losses) {
  constexpr int kLot = Lot<T>::kCount;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    T* const values = logits + row * shape.vocabulary;
    const int64_t target = targets[row];
    // A target outside the vocabulary is the caller's bug; the trap ends the run.
    if (target < 0 || target >= shape.vocabulary) __trap();
    const RowLots<T> part(values, shape.vocabulary);
    // Calls visit(index of the first value, array to fill); each value belongs to one thread.
    const auto each = [&](const auto& visit) {
      T many[kLot], one[1];
      for (int64_t i = threadIdx.x; i < part.head; i += blockDim.x) visit(i, one);
      for (int64_t i = threadIdx.x; i < part.lots; i += blockDim.x) {
        visit(part.head + i * kLot, many);
      }
      for (int64_t i = part.tail + threadIdx.x; i < shape.vocabulary; i += blockDim.x) {
        visit(i, one);
      }
    };
    Seen seen = {-CUDART_INF_F, 0.0f};
    each([&](int64_t at, auto& some) {
      load_values(values + at, some);
      seen.add(some);
    });
    const float row_most = over_block(seen.most, Most(), -CUDART_INF_F);
    float sum = seen.sum;
    if (seen.most != -CUDART_INF_F) sum *= expf(seen.most - row_most);
    sum = over_block(sum, Add(), 0.0f);
    if (threadIdx.x == 0) losses[row] = logf(sum) - (to_float(values[target]) - row_most);
    if (!shape.gradient) continue;
    __syncthreads();  // waits until thread 0 has read the target's logit
    const float row_scale = shape.row_scales == nullptr ? 1.0f : shape.row_scales[row];
    const float scale = static_cast<float>(shape.scale) * row_scale;
    each([&](int64_t at, auto& some) {
      load_values(values + at, some);
      for (int i = 0; i < static_cast<int>(sizeof(some) / sizeof(T)); ++i) {
        const float probability = expf(to_float(some[i]) - row_most) / sum;
        some[i] = rounded_to<T>((probability - (at + i == target ? 1.0f : 0.0f)) * scale);
      }
      store_values(values + at, some);
    });
  }
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& shape, void* logits, const int64_t* targets,
                        float* losses, CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_cuda_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    launch(loss_and_gradient<T>, blocks_for(shape.rows),
           threads_for(shape.vocabulary / Lot<T>::kCount), stream, shape, static_cast<T*>(logits),
           targets, losses);
  });
  check_launch("cross_entropy");
}

}  // namespace longshore::kernels
