// Values of a matrix packed in MXFP4 (base/mxfp4.h), in fp32 or bf16, which hold them exactly. The
// packed bytes are the transpose of the values. Pure functions over contiguous arrays. `packed` is
// aligned to 16 bytes.
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

// Write the values [inputs, outputs] to `y`; on the CPU those of the inputs of groups
// [begin_group, end_group), so that several threads can share a matrix.
void unpack_mxfp4_cpu(DType dtype, int64_t inputs, int64_t outputs, const void* packed,
                      int64_t begin_group, int64_t end_group, void* y);

void unpack_mxfp4_cuda(DType dtype, int64_t inputs, int64_t outputs, const void* packed, void* y,
                       CUstream_st* stream);

}  // namespace longshore::kernels
