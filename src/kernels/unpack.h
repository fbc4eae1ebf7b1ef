// Unpacks matrices in a packed format (base/packed_format.h, base/mxfp4.h) to fp32 or bf16. Pure
// functions over contiguous arrays, in the caller's thread; those for the CPU write a range of the
// values, so that several threads can share a matrix. The last two columns are alignments.
//
//   format  value                                            packed        y
//   fp8     number times scale, rounded to bf16              at 4 bytes    at 16 bytes
//   nf4     level times the scale of its block, rounded once at 4 bytes    at 16 bytes
//   nf4_f32 the same                                         at 4 bytes    at 16 bytes
//   mxfp4   exact in both dtypes; packed is the transpose    at 16 bytes
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

// Write the values of a matrix of rows x columns in fp8 to `y`; on the CPU those of [begin, end).
// No code may be NaN.
void unpack_fp8_cpu(DType dtype, int64_t rows, int64_t columns, const void* packed, int64_t begin,
                    int64_t end, void* y);
void unpack_fp8_cuda(DType dtype, int64_t rows, int64_t columns, const void* packed, void* y,
                     CUstream_st* stream);

// Write the values of a tensor of `elements` values in NF4 to `y`; on the CPU those of [begin,
// end).
void unpack_nf4_cpu(DType dtype, int64_t elements, const void* packed, int64_t begin, int64_t end,
                    void* y);
void unpack_nf4_cuda(DType dtype, int64_t elements, const void* packed, void* y,
                     CUstream_st* stream);

// Write the values of a tensor of `elements` values in NF4 with scales in fp32 (Nf4F32Layout) to
// `y`; on the CPU those of [begin, end).
void unpack_nf4_f32_cpu(DType dtype, int64_t elements, const void* packed, int64_t begin,
                        int64_t end, void* y);
void unpack_nf4_f32_cuda(DType dtype, int64_t elements, const void* packed, void* y,
                         CUstream_st* stream);

// Write the values [inputs, outputs] of a matrix in MXFP4 to `y`; on the CPU those of the inputs of
// groups [begin_group, end_group).
void unpack_mxfp4_cpu(DType dtype, int64_t inputs, int64_t outputs, const void* packed,
                      int64_t begin_group, int64_t end_group, void* y);
void unpack_mxfp4_cuda(DType dtype, int64_t inputs, int64_t outputs, const void* packed, void* y,
                       CUstream_st* stream);

}  // namespace longshore::kernels
