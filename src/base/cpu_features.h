// CpuFeatures: what this process's CPU can do, where it changes numbers or memory. Pure functions,
// any thread.
#pragma once

namespace longshore {

// The AVX-512 that LibTorch's and MKL's kernels ask for: F, BW, DQ and VL. Without it bf16
// products are LibTorch's own loops.
bool cpu_has_avx512();
// AES on vectors of 256 bits, with or without AVX-512.
bool cpu_has_vaes();

// Products of bf16 numbers in hardware. Without them bf16 is emulated, and slower than fp32.
bool cpu_has_bf16();

}  // namespace longshore
