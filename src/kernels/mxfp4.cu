#include "base/mxfp4.h"
#include "kernels/cuda_values.h"
#include "kernels/mxfp4.h"

namespace longshore::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kGroup = 32;       // Mxfp4Layout::kGroup
constexpr int kGroupBytes = 16;  // Mxfp4Layout::kGroupBytes

// The parts of a packed matrix.
struct Packed {
  int64_t outputs;
  int64_t groups;
  const unsigned char* blocks;
  const unsigned char* scales;
};

// The numbers are 0, 0.5, 1, 1.5, 2, 3, 4 and 6: above 1, a bit of mantissa with an exponent.
__device__ __forceinline__ float number_of(int code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const float size = exponent == 0 ? 0.5F * static_cast<float>(mantissa)
                                   : (1.0F + 0.5F * static_cast<float>(mantissa)) *
                                         static_cast<float>(1 << (exponent - 1));
  return code & 8 ? -size : size;
}

// 2^(stored - 127); below the normal numbers, 2^-127 is half of the smallest.
__device__ __forceinline__ float power_of(unsigned char stored) {
  const unsigned exponent = stored;
  if (exponent == 255) return __fmul_rn(0x1p127F, 2.0F);
  return __uint_as_float(exponent == 0 ? 1u << 22 : exponent << 23);
}

// Each thread unpacks a group of an output; threads side by side write outputs side by side.
template <typename T>
__global__ void unpack(Packed packed, T* y) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (output >= packed.outputs) return;
  for (int64_t group = blockIdx.y; group < packed.groups; group += gridDim.y) {
    const int64_t at = output * packed.groups + group;
    const Lot<unsigned char> pairs = reinterpret_cast<const Lot<unsigned char>*>(packed.blocks)[at];
    const float power = power_of(packed.scales[at]);
    T* const out = y + group * kGroup * packed.outputs + output;
    for (int i = 0; i < kGroupBytes; ++i) {
      const unsigned char pair = pairs.values[i];
      out[2 * i * packed.outputs] = rounded_to<T>(__fmul_rn(number_of(pair & 15), power));
      out[(2 * i + 1) * packed.outputs] = rounded_to<T>(__fmul_rn(number_of(pair >> 4), power));
    }
  }
}

}  // namespace

void unpack_mxfp4_cuda(DType dtype, int64_t inputs, int64_t outputs, const void* packed, void* y,
                       CUstream_st* stream) {
  const Mxfp4Layout layout(inputs, outputs);
  if (layout.elements() == 0) return;
  LONGSHORE_CHECK(aligned(packed)) << "unpack_mxfp4 needs 16-byte alignment";
  const auto* const bytes = static_cast<const unsigned char*>(packed);
  const Packed parts{.outputs = outputs,
                     .groups = layout.groups(),
                     .blocks = bytes,
                     .scales = bytes + layout.scales_begin()};
  constexpr int64_t kMostRows = 65535;
  const dim3 blocks(
      blocks_for((outputs + kThreads - 1) / kThreads),
      static_cast<unsigned>(layout.groups() < kMostRows ? layout.groups() : kMostRows));
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(unpack<T>, blocks, kThreads, stream, parts, static_cast<T*>(y));
  });
  check_launch("unpack_mxfp4");
}

}  // namespace longshore::kernels
