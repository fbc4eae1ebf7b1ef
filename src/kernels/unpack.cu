#include "base/fp8.h"
#include "base/mxfp4.h"
#include "base/nf4.h"
#include "kernels/cuda_values.h"
#include "kernels/unpack.h"

namespace longshore::kernels {
namespace {

// ---- fp8 ----

constexpr int kFp8Block = 128;  // Fp8Layout::kBlock

// The parts of a packed matrix.
struct Fp8Parts {
  static constexpr int kTable = 0;

  int64_t columns;
  int64_t block_columns;
  const float* scales;
  const unsigned char* codes;
};

// The bits of a code are those of an fp32 number that is 2^120 times smaller.
__device__ __forceinline__ float fp8_number(unsigned char code) {
  const unsigned bits = static_cast<unsigned>(code & 0x7F) << 20;
  const float size = __fmul_rn(__uint_as_float(bits), 0x1p120F);
  return code & 0x80 ? -size : size;
}

template <typename T>
__device__ __forceinline__ T value_at(const Fp8Parts& packed, int64_t element, int64_t row,
                                      int64_t column) {
  const float scale = packed.scales[row / kFp8Block * packed.block_columns + column / kFp8Block];
  const float product = __fmul_rn(fp8_number(packed.codes[element]), scale);
  return rounded_to<T>(rounded<__nv_bfloat16>(product));
}

// Writes `count` values from `first` on.
template <typename T>
__device__ __forceinline__ void values_at(const Fp8Parts& packed, const float* /*table*/,
                                          int64_t first, int count, T* y) {
  int64_t row = first / packed.columns;
  int64_t column = first - row * packed.columns;
  for (int i = 0; i < count; ++i) {
    y[i] = value_at<T>(packed, first + i, row, column);
    if (++column == packed.columns) {
      column = 0;
      ++row;
    }
  }
}

// ---- NF4 ----

constexpr int kNf4Block = 64;   // Nf4Layout::kBlock
constexpr int kNf4Group = 256;  // Nf4Layout::kGroup

constexpr int kNf4Table = 16;  // the levels

// The parts of a packed tensor, and the levels with the scales' levels after them.
struct Nf4Parts {
  static constexpr int kTable = kNf4Table + 256;

  const float* mean;
  const float* largest;
  const unsigned char* scales;
  const unsigned char* codes;
  float table[kTable];
};

// Nf4F32Parts has the parts of a packed tensor whose scales are in fp32, and the levels.
struct Nf4F32Parts {
  static constexpr int kTable = kNf4Table;

  const float* scales;
  const unsigned char* codes;
  float table[kTable];
};

__device__ __forceinline__ float scale_of(const Nf4Parts& packed, const float* table,
                                          int64_t block) {
  const float scale_level = table[kNf4Table + packed.scales[block]];
  return __fadd_rn(__fmul_rn(scale_level, packed.largest[block / kNf4Group]), *packed.mean);
}
__device__ __forceinline__ float scale_of(const Nf4F32Parts& packed, const float* /*table*/,
                                          int64_t block) {
  return packed.scales[block];
}

// Writes `count` values from `first` on, which are in one block of the format.
template <typename Parts, typename T>
__device__ __forceinline__ void values_at(const Parts& packed, const float* table, int64_t first,
                                          int count, T* y) {
  const float scale = scale_of(packed, table, first / kNf4Block);
  for (int i = 0; i < count; ++i) {
    const unsigned char pair = packed.codes[(first + i) / 2];
    const float level = table[(first + i) % 2 == 0 ? pair >> 4 : pair & 15];
    y[i] = rounded_to<T>(__fmul_rn(level, scale));
  }
}

// ---- Both ----

constexpr int kLotThreads = 256;

// Lots of a thread in large tensors: a block that copies a table has work for it.
template <typename Parts>
constexpr int kLotsOfThread = Parts::kTable > 0 ? 4 : 1;

// Each thread makes lots of 16 bytes; the last elements are made one by one. The table that a
// launch passes by value is read from shared memory: lanes read different places of it, which
// would be one load after the other from a kernel's parameters.
template <typename T, typename Parts>
__global__ void unpack_lots(Parts packed, int64_t elements, T* y) {
  constexpr int kLot = Lot<T>::kCount;
  __shared__ float table[Parts::kTable > 0 ? Parts::kTable : 1];
  if constexpr (Parts::kTable > 0) {
    for (int i = threadIdx.x; i < Parts::kTable; i += blockDim.x) table[i] = packed.table[i];
    __syncthreads();  // a thread reads what others have written
  }
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t lot = thread; lot < elements / kLot; lot += threads) {
    Lot<T> out;
    values_at(packed, table, lot * kLot, kLot, out.values);
    reinterpret_cast<Lot<T>*>(y)[lot] = out;
  }
  for (int64_t i = elements / kLot * kLot + thread; i < elements; i += threads) {
    values_at(packed, table, i, 1, y + i);
  }
}

template <typename Parts>
void launch_lots(DType dtype, const Parts& parts, int64_t elements, void* y, CUstream_st* stream) {
  const int64_t each = kLotsOfThread<Parts> * kLotThreads * (16 / width_of(dtype));
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(unpack_lots<T, Parts>, blocks_for((elements + each - 1) / each), kLotThreads, stream,
           parts, elements, static_cast<T*>(y));
  });
}

// ---- MXFP4 ----

constexpr int kMxfp4Threads = 128;
constexpr int kMxfp4Group = 32;       // Mxfp4Layout::kGroup
constexpr int kMxfp4GroupBytes = 16;  // Mxfp4Layout::kGroupBytes

// The parts of a packed matrix.
struct Mxfp4Parts {
  int64_t outputs;
  int64_t groups;
  const unsigned char* blocks;
  const unsigned char* scales;
};

// The numbers are 0, 0.5, 1, 1.5, 2, 3, 4 and 6: above 1, a bit of mantissa with an exponent.
__device__ __forceinline__ float mxfp4_number(int code) {
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
__global__ void unpack_mxfp4(Mxfp4Parts packed, T* y) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (output >= packed.outputs) return;
  for (int64_t group = blockIdx.y; group < packed.groups; group += gridDim.y) {
    const int64_t at = output * packed.groups + group;
    const Lot<unsigned char> pairs = reinterpret_cast<const Lot<unsigned char>*>(packed.blocks)[at];
    const float power = power_of(packed.scales[at]);
    T* const out = y + group * kMxfp4Group * packed.outputs + output;
    for (int i = 0; i < kMxfp4GroupBytes; ++i) {
      const unsigned char pair = pairs.values[i];
      out[2 * i * packed.outputs] = rounded_to<T>(__fmul_rn(mxfp4_number(pair & 15), power));
      out[(2 * i + 1) * packed.outputs] = rounded_to<T>(__fmul_rn(mxfp4_number(pair >> 4), power));
    }
  }
}

}  // namespace

void unpack_fp8_cuda(DType dtype, int64_t rows, int64_t columns, const void* packed, void* y,
                     CUstream_st* stream) {
  const Fp8Layout layout(rows, columns);
  if (layout.elements() == 0) return;
  LONGSHORE_CHECK(aligned(y)) << "unpack_fp8 needs 16-byte alignment";
  const Fp8Parts parts{.columns = columns,
                       .block_columns = layout.block_columns(),
                       .scales = static_cast<const float*>(packed),
                       .codes = static_cast<const unsigned char*>(packed) + layout.codes_begin()};
  launch_lots(dtype, parts, layout.elements(), y, stream);
  check_launch("unpack_fp8");
}

void unpack_nf4_cuda(DType dtype, int64_t elements, const void* packed, void* y,
                     CUstream_st* stream) {
  if (elements == 0) return;
  LONGSHORE_CHECK(aligned(y)) << "unpack_nf4 needs 16-byte alignment";
  const Nf4Layout layout(elements);
  const auto* const bytes = static_cast<const unsigned char*>(packed);
  Nf4Parts parts{};
  parts.mean = static_cast<const float*>(packed);
  parts.largest = parts.mean + layout.largest_begin() / 4;
  parts.scales = bytes + layout.scales_begin();
  parts.codes = bytes + layout.codes_begin();
  for (int i = 0; i < 16; ++i) parts.table[i] = kNf4Levels[i];
  for (int i = 0; i < 256; ++i) parts.table[kNf4Table + i] = nf4_scale_levels()[i];
  launch_lots(dtype, parts, elements, y, stream);
  check_launch("unpack_nf4");
}

void unpack_nf4_f32_cuda(DType dtype, int64_t elements, const void* packed, void* y,
                         CUstream_st* stream) {
  if (elements == 0) return;
  LONGSHORE_CHECK(aligned(y)) << "unpack_nf4_f32 needs 16-byte alignment";
  Nf4F32Parts parts{};
  parts.scales = static_cast<const float*>(packed);
  parts.codes = static_cast<const unsigned char*>(packed) + Nf4F32Layout(elements).codes_begin();
  for (int i = 0; i < 16; ++i) parts.table[i] = kNf4Levels[i];
  launch_lots(dtype, parts, elements, y, stream);
  check_launch("unpack_nf4_f32");
}

void unpack_mxfp4_cuda(DType dtype, int64_t inputs, int64_t outputs, const void* packed, void* y,
                       CUstream_st* stream) {
  const Mxfp4Layout layout(inputs, outputs);
  if (layout.elements() == 0) return;
  LONGSHORE_CHECK(aligned(packed)) << "unpack_mxfp4 needs 16-byte alignment";
  const auto* const bytes = static_cast<const unsigned char*>(packed);
  const Mxfp4Parts parts{.outputs = outputs,
                         .groups = layout.groups(),
                         .blocks = bytes,
                         .scales = bytes + layout.scales_begin()};
  constexpr int64_t kMostRows = 65535;
  const dim3 blocks(
      blocks_for((outputs + kMxfp4Threads - 1) / kMxfp4Threads),
      static_cast<unsigned>(layout.groups() < kMostRows ? layout.groups() : kMostRows));
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(unpack_mxfp4<T>, blocks, kMxfp4Threads, stream, parts, static_cast<T*>(y));
  });
  check_launch("unpack_mxfp4");
}

}  // namespace longshore::kernels
