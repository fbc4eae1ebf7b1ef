#include "base/fp8.h"
#include "kernels/cuda_values.h"
#include "kernels/fp8.h"

namespace longshore::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 128;  // Fp8Layout::kBlock

// The parts of a packed matrix.
struct Packed {
  int64_t elements;
  int64_t columns;
  int64_t block_columns;
  const float* scales;
  const unsigned char* codes;
};

// The bits of a code are those of an fp32 number that is 2^120 times smaller.
__device__ __forceinline__ float number_of(unsigned char code) {
  const unsigned bits = static_cast<unsigned>(code & 0x7F) << 20;
  const float size = __fmul_rn(__uint_as_float(bits), 0x1p120F);
  return code & 0x80 ? -size : size;
}

template <typename T>
__device__ __forceinline__ T value_at(const Packed& packed, int64_t element, int64_t row,
                                      int64_t column) {
  const float scale = packed.scales[row / kBlock * packed.block_columns + column / kBlock];
  const float product = __fmul_rn(number_of(packed.codes[element]), scale);
  return rounded_to<T>(rounded<__nv_bfloat16>(product));
}

// Each thread makes lots of 16 bytes; the last elements are made one by one.
template <typename T>
__global__ void unpack(Packed packed, T* y) {
  constexpr int kLot = Lot<T>::kCount;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t lot = thread; lot < packed.elements / kLot; lot += threads) {
    int64_t row = lot * kLot / packed.columns;
    int64_t column = lot * kLot - row * packed.columns;
    Lot<T> out;
    for (int i = 0; i < kLot; ++i) {
      out.values[i] = value_at<T>(packed, lot * kLot + i, row, column);
      if (++column == packed.columns) {
        column = 0;
        ++row;
      }
    }
    reinterpret_cast<Lot<T>*>(y)[lot] = out;
  }
  for (int64_t i = packed.elements / kLot * kLot + thread; i < packed.elements; i += threads) {
    y[i] = value_at<T>(packed, i, i / packed.columns, i % packed.columns);
  }
}

}  // namespace

void unpack_fp8_cuda(DType dtype, int64_t rows, int64_t columns, const void* packed, void* y,
                     CUstream_st* stream) {
  const Fp8Layout layout(rows, columns);
  if (layout.elements() == 0) return;
  LONGSHORE_CHECK(aligned(y)) << "unpack_fp8 needs 16-byte alignment";
  const Packed parts{.elements = layout.elements(),
                     .columns = columns,
                     .block_columns = layout.block_columns(),
                     .scales = static_cast<const float*>(packed),
                     .codes = static_cast<const unsigned char*>(packed) + layout.codes_begin()};
  const int64_t each = kThreads * (16 / width_of(dtype));
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(unpack<T>, blocks_for((layout.elements() + each - 1) / each), kThreads, stream, parts,
           static_cast<T*>(y));
  });
  check_launch("unpack_fp8");
}

}  // namespace longshore::kernels
