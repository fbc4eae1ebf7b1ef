#include "kernels/cuda_values.h"
#include "kernels/rotary.h"

namespace longshore::kernels {
namespace {

// One block handles a row. A thread rotates kCount neighbouring pairs by the same angles in each of
// its heads, so that it computes sines and cosines once for all of them. With kCount above 1 the
// partners lie half of the turned values apart.
template <typename T, int kCount>
__global__ void rotate(Rotary shape, const T* __restrict__ x, const int64_t* __restrict__ positions,
                       const float* __restrict__ frequencies, T* __restrict__ out) {
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
        store_values<kCount>(to, one);
        store_values<kCount>(to + partner, other);
      }
    }
    // The rest of each head stays.
    for (int64_t head = first_head; head < shape.heads; head += heads_at_once) {
      const T* in = x + row * shape.row_stride + head * shape.head_dim;
      T* to = out + (row * shape.heads + head) * shape.head_dim;
      for (int64_t i = shape.turned + threadIdx.x % across; i < shape.head_dim; i += across) {
        to[i] = in[i];
      }
    }
  }
}

// True if every half of a head's turned values is 16-byte aligned.
bool takes_lots(const Rotary& shape, const void* x, const float* frequencies, const void* out) {
  const int64_t width = width_of(shape.dtype);
  return !shape.pairs && shape.turned / 2 * width % 16 == 0 && shape.head_dim * width % 16 == 0 &&
         shape.row_stride * width % 16 == 0 && shape.frequency_stride % 4 == 0 && aligned(x) &&
         aligned(frequencies) && aligned(out);
}

}  // namespace

void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st* stream) {
  LONGSHORE_CHECK(shape.turned > 0 && shape.turned % 2 == 0 && shape.turned <= shape.head_dim)
      << shape.turned;
  if (shape.rows == 0) return;
  const bool lots = takes_lots(shape, x, frequencies, out);
  with_cuda_width(shape.dtype, lots, [&](auto type, auto count) {
    using T = decltype(type);
    const int64_t work = shape.heads * (shape.turned / 2 / count);
    launch(rotate<T, decltype(count)::value>, blocks_for(shape.rows), threads_for(work), stream,
           shape, static_cast<const T*>(x), positions, frequencies, static_cast<T*>(out));
  });
  check_launch("rotary");
}

}  // namespace longshore::kernels
