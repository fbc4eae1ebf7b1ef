#include "base/nf4.h"
#include "kernels/cuda_values.h"
#include "kernels/nf4.h"

namespace longshore::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 64;   // Nf4Layout::kBlock
constexpr int kGroup = 256;  // Nf4Layout::kGroup

// The parts of a packed tensor and the levels, which a launch passes by value.
struct Packed {
  int64_t elements;
  const float* mean;
  const float* largest;
  const unsigned char* scales;
  const unsigned char* codes;
  float levels[16];
  float scale_levels[256];
};

// Each thread makes lots of 16 bytes, which lie in one block of the format; the last elements are
// made one by one.
template <typename T>
__device__ __forceinline__ T value_at(const Packed& packed, int64_t element, float scale) {
  const unsigned char pair = packed.codes[element / 2];
  const float level = packed.levels[element % 2 == 0 ? pair >> 4 : pair & 15];
  return rounded_to<T>(__fmul_rn(level, scale));
}

__device__ __forceinline__ float scale_at(const Packed& packed, int64_t element) {
  const int64_t block = element / kBlock;
  const float level = packed.scale_levels[packed.scales[block]];
  return __fadd_rn(__fmul_rn(level, packed.largest[block / kGroup]), *packed.mean);
}

template <typename T>
__global__ void unpack(Packed packed, T* y) {
  constexpr int kLot = Lot<T>::kCount;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t lot = thread; lot < packed.elements / kLot; lot += threads) {
    const float scale = scale_at(packed, lot * kLot);
    Lot<T> out;
    for (int i = 0; i < kLot; ++i) out.values[i] = value_at<T>(packed, lot * kLot + i, scale);
    reinterpret_cast<Lot<T>*>(y)[lot] = out;
  }
  for (int64_t i = packed.elements / kLot * kLot + thread; i < packed.elements; i += threads) {
    y[i] = value_at<T>(packed, i, scale_at(packed, i));
  }
}

}  // namespace

void unpack_nf4_cuda(DType dtype, int64_t elements, const void* packed, void* y,
                     CUstream_st* stream) {
  if (elements == 0) return;
  LONGSHORE_CHECK(aligned(y)) << "unpack_nf4 needs 16-byte alignment";
  const Nf4Layout layout(elements);
  const auto* const bytes = static_cast<const unsigned char*>(packed);
  Packed parts{};
  parts.elements = elements;
  parts.mean = static_cast<const float*>(packed);
  parts.largest = parts.mean + layout.largest_begin() / 4;
  parts.scales = bytes + layout.scales_begin();
  parts.codes = bytes + layout.codes_begin();
  for (int i = 0; i < 16; ++i) parts.levels[i] = kNf4Levels[i];
  for (int i = 0; i < 256; ++i) parts.scale_levels[i] = nf4_scale_levels()[i];
  const int64_t each = kThreads * (16 / width_of(dtype));
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(unpack<T>, blocks_for((elements + each - 1) / each), kThreads, stream, parts,
           static_cast<T*>(y));
  });
  check_launch("unpack_nf4");
}

}  // namespace longshore::kernels
