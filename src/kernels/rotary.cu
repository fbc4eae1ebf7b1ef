#include <cstring>

#include "kernels/cuda_values.h"
#include "kernels/rotary.h"

namespace longshore::kernels {
namespace {

// Stores neighbours at once. In this kernel nvcc splits the lots of store_values into stores of
// single values.
template <int kCount, typename T>
__device__ __forceinline__ void store_lot(T* to, const T (&values)[kCount]) {
#ifdef __CUDACC__
  if constexpr (kCount == Lot<T>::kCount) {
    uint4 bits;
    memcpy(&bits, values, sizeof(bits));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
    return;
  }
#endif
  store_values<kCount>(to, values);
}

// Copies what one of `threads` threads has of the values of a head that are not turned, kCount at a
// time.
template <int kCount, typename T>
__device__ __forceinline__ void copy_rest(const Rotary& shape, const T* in, T* to, int64_t thread,
                                          int64_t threads) {
  T values[kCount];
  for (int64_t i = shape.turned + thread * kCount; i < shape.head_dim; i += threads * kCount) {
    load_values<kCount>(in + i, values);
    store_lot<kCount>(to + i, values);
  }
}

// One block handles a row. A thread rotates kCount neighbouring pairs by the same angles in each of
// its heads, so that it computes sines and cosines once for all of them. With kCount above 1 the
// partners lie half of the turned values apart. With `rest_in_lots` the rest of a head is copied 16
// bytes at a time.
template <typename T, int kCount>
__global__ void rotate(Rotary shape, const T* __restrict__ x, const int64_t* __restrict__ positions,
                       const float* __restrict__ frequencies, bool rest_in_lots,
                       T* __restrict__ out) {
  const int64_t half = shape.turned / 2;
  const int64_t lots = half / kCount;
  const int64_t across = lots < blockDim.x ? lots : blockDim.x;  // threads per head
  const int64_t heads_at_once = blockDim.x / across;
  const int64_t first_head = threadIdx.x / across;
  const int64_t partner = shape.pairs ? 1 : half;
  if (first_head >= heads_at_once) return;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const auto position = static_cast<float>(positions[row]);
    const float* own = frequencies + row * shape.frequency_stride;
    for (int64_t lot = threadIdx.x % across; lot < lots; lot += across) {
      float turns[kCount], cosines[kCount], sines[kCount];
      load_values<kCount>(own + lot * kCount, turns);
      for (int i = 0; i < kCount; ++i) {
        // The fast forms are not accurate enough: angles reach the length of a document.
        const float angle = position * turns[i];
        cosines[i] = rounded<T>(cosf(angle) * shape.scale);
        sines[i] = rounded<T>(sinf(angle) * shape.scale) * static_cast<float>(shape.direction);
      }
      for (int64_t head = first_head; head < shape.heads; head += heads_at_once) {
        const int64_t at = shape.pairs ? 2 * lot : lot * kCount;
        const T* in = x + row * shape.row_stride + head * shape.head_dim + at;
        T* to = out + (row * shape.heads + head) * shape.head_dim + at;
        T one[kCount], other[kCount];
        load_values<kCount>(in, one);
        load_values<kCount>(in + partner, other);
        for (int i = 0; i < kCount; ++i) {
          const float a = to_float(one[i]), b = to_float(other[i]);
          one[i] = rounded_to<T>(
              __fsub_rn(rounded<T>(__fmul_rn(a, cosines[i])), rounded<T>(__fmul_rn(b, sines[i]))));
          other[i] = rounded_to<T>(
              __fadd_rn(rounded<T>(__fmul_rn(b, cosines[i])), rounded<T>(__fmul_rn(a, sines[i]))));
        }
        store_lot<kCount>(to, one);
        store_lot<kCount>(to + partner, other);
      }
    }
    // The rest of each head stays.
    for (int64_t head = first_head; head < shape.heads; head += heads_at_once) {
      const T* in = x + row * shape.row_stride + head * shape.head_dim;
      T* to = out + (row * shape.heads + head) * shape.head_dim;
      const int64_t thread = threadIdx.x % across;
      if (kCount > 1 || rest_in_lots) {
        copy_rest<Lot<T>::kCount>(shape, in, to, thread, across);
      } else {
        copy_rest<1>(shape, in, to, thread, across);
      }
    }
  }
}

// True if all heads, and the rest of each behind its turned values, are 16-byte aligned.
bool rest_takes_lots(const Rotary& shape, const void* x, const void* out) {
  const int64_t width = width_of(shape.dtype);
  return shape.turned * width % 16 == 0 && shape.head_dim * width % 16 == 0 &&
         shape.row_stride * width % 16 == 0 && aligned(x) && aligned(out);
}

// True if also every half of a head's turned values is.
bool takes_lots(const Rotary& shape, const void* x, const float* frequencies, const void* out) {
  return !shape.pairs && shape.turned / 2 * width_of(shape.dtype) % 16 == 0 &&
         rest_takes_lots(shape, x, out) && shape.frequency_stride % 4 == 0 && aligned(frequencies);
}

}  // namespace

void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st* stream) {
  LONGSHORE_CHECK(shape.turned > 0 && shape.turned % 2 == 0 && shape.turned <= shape.head_dim)
      << shape.turned;
  if (shape.rows == 0) return;
  const bool rest = rest_takes_lots(shape, x, out);
  const bool lots = takes_lots(shape, x, frequencies, out);
  with_cuda_width(shape.dtype, lots, [&](auto type, auto count) {
    using T = decltype(type);
    const int64_t work = shape.heads * (shape.turned / 2 / count);
    launch(rotate<T, decltype(count)::value>, blocks_for(shape.rows), threads_for(work), stream,
           shape, static_cast<const T*>(x), positions, frequencies, rest, static_cast<T*>(out));
  });
  check_launch("rotary");
}

}  // namespace longshore::kernels
