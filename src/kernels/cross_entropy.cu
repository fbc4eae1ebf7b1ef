#include <math_constants.h>

#include "kernels/cross_entropy.h"
#include "kernels/cuda_values.h"

namespace longshore::kernels {
namespace {

// A thread's running maximum of a row, its sum of exponentials relative to that maximum, and the
// sum of their products with their exponents.
struct Seen {
  float most;
  float sum;
  float products;

  // Makes the sums relative to a maximum that is not lower.
  __device__ void raise(float larger) {
    if (most != -CUDART_INF_F) {
      const float less = most - larger, factor = expf(less);
      products = (products + sum * fmaxf(less, kLeastEntropyExponent)) * factor;
      sum *= factor;
    }
    most = larger;
  }

  template <int kCount, typename T>
  __device__ void add(const T (&values)[kCount]) {
    float larger = most;
    for (int i = 0; i < kCount; ++i) {
      const float value = to_float(values[i]);
      larger = value > larger ? value : larger;
    }
    if (larger > most) raise(larger);
    for (int i = 0; i < kCount; ++i) {
      const float value = to_float(values[i]);
      // This adds nothing while all values are minus infinity, but a NaN always reaches the sum.
      if (most != -CUDART_INF_F || isnan(value)) {
        const float exponent = value - most, power = expf(exponent);
        sum += power;
        products += power * fmaxf(exponent, kLeastEntropyExponent);
      }
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
    // Every thread reads it here, before any writes a gradient behind the barriers of the sums
    // below.
    const float wanted = to_float(values[target]);
    Seen seen = {-CUDART_INF_F, 0.0f, 0.0f};
    float above = 0.0f;  // logits that are higher than the target's, or equal with a lower id
    each([&](int64_t at, auto& some) {
      load_values(values + at, some);
      seen.add(some);
      for (int i = 0; i < static_cast<int>(sizeof(some) / sizeof(T)); ++i) {
        const float value = to_float(some[i]);
        if (value > wanted || (value == wanted && at + i < target)) above = 1.0f;
      }
    });
    const float row_most = over_block(seen.most, Most(), -CUDART_INF_F);
    if (seen.most != -CUDART_INF_F) seen.raise(row_most);
    const float sum = over_block(seen.sum, Add(), 0.0f);
    if (threadIdx.x == 0) losses[row] = logf(sum) - (wanted - row_most);
    if (shape.statistics != nullptr) {
      const float products = over_block(seen.products, Add(), 0.0f);
      above = over_block(above, Most(), 0.0f);
      if (threadIdx.x == 0) {
        shape.statistics[2 * row] = above == 0.0f ? 1.0f : 0.0f;
        shape.statistics[2 * row + 1] = logf(sum) - products / sum;
      }
    }
    if (!shape.gradient) continue;
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
