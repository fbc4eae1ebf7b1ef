// CpuFeatures: CPU features that change results or memory use. Pure functions, any thread.
#pragma once

namespace longshore {

// True if the CPU has the AVX-512 subsets that LibTorch's and MKL's kernels need: F, BW, DQ and VL.
// Without them LibTorch computes bf16 products with its own loops.
bool cpu_has_avx512();
// True if the CPU has AES on 256-bit vectors, with or without AVX-512.
bool cpu_has_vaes();

// True if the CPU multiplies bf16 in hardware. Emulated bf16 is slower than fp32.
bool cpu_has_bf16();

}  // namespace longshore
