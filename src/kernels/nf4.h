// Values of a tensor packed in NF4 (base/nf4.h), in fp32 or bf16: a level times the scale of its
// block, rounded once. Pure functions over contiguous arrays. `packed` is aligned to 4 bytes and
// `y` to 16.
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

// Write the values of a packed tensor of `elements` values to `y`; on the CPU those of [begin,
// end), so that several threads can share a tensor.
void unpack_nf4_cpu(DType dtype, int64_t elements, const void* packed, int64_t begin, int64_t end,
                    void* y);

void unpack_nf4_cuda(DType dtype, int64_t elements, const void* packed, void* y,
                     CUstream_st* stream);

}  // namespace longshore::kernels
