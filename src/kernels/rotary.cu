#include "kernels/cuda_values.h"
#include "kernels/rotary.h"

namespace longshore::kernels {
namespace {

// One block for a row; a thread keeps its angle over the heads.
template <typename T>
__global__ void rotate(Rotary shape, const T* __restrict__ x, const int64_t* __restrict__ positions,
                       const float* __restrict__ frequencies, T* __restrict__ out) {
  const int64_t half = shape.head_dim / 2;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const auto position = static_cast<float>(positions[row]);
    for (int64_t at = threadIdx.x; at < half * shape.heads; at += blockDim.x) {
      const int64_t head = at / half, i = at % half;
      // Not the fast forms: angles reach the length of a document.
      const float angle = position * frequencies[i];
      const float cosine = rounded<T>(cosf(angle));
      const float sine = rounded<T>(sinf(angle)) * static_cast<float>(shape.direction);
      const T* in = x + row * shape.row_stride + head * shape.head_dim;
      T* to = out + (row * shape.heads + head) * shape.head_dim;
      const float a = to_float(in[i]), b = to_float(in[i + half]);
      to[i] = rounded_to<T>(
          __fsub_rn(rounded<T>(__fmul_rn(a, cosine)), rounded<T>(__fmul_rn(b, sine))));
      to[i + half] = rounded_to<T>(
          __fadd_rn(rounded<T>(__fmul_rn(b, cosine)), rounded<T>(__fmul_rn(a, sine))));
    }
  }
}

}  // namespace

void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st* stream) {
  LONGSHORE_CHECK(shape.head_dim % 2 == 0) << shape.head_dim;
  if (shape.rows == 0) return;
  with_cuda_type(shape.dtype, [&](auto type) {
    using T = decltype(type);
    launch(rotate<T>, blocks_for(shape.rows), threads_for(shape.heads * shape.head_dim), stream,
           shape, static_cast<const T*>(x), positions, frequencies, static_cast<T*>(out));
  });
  check_launch("rotary");
}

}  // namespace longshore::kernels
