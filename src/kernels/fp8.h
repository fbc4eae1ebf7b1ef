// Values of a matrix packed in block-scaled fp8 (base/fp8.h), in fp32 or bf16: number times scale,
// rounded to bf16. Pure functions over contiguous arrays. `packed` is aligned to 4 bytes and `y`
// to 16.
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

// Write the values of a packed matrix of rows x columns to `y`; on the CPU those of [begin, end),
// so that several threads can share a matrix. No code may be NaN.
void unpack_fp8_cpu(DType dtype, int64_t rows, int64_t columns, const void* packed, int64_t begin,
                    int64_t end, void* y);

void unpack_fp8_cuda(DType dtype, int64_t rows, int64_t columns, const void* packed, void* y,
                     CUstream_st* stream);

}  // namespace longshore::kernels
