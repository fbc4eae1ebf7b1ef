// CPU features that change results or memory use, short scheduler slices for threads that move
// bytes, and the machine's name. Any thread.
#pragma once

#include <string>

namespace longshore {

// Returns the machine's name; empty if the system does not give it.
std::string host_name();

// CPU features that change results or memory use. Pure functions, any thread.

// True if the CPU has the AVX-512 subsets that LibTorch's and MKL's kernels need: F, BW, DQ and VL.
// Without them LibTorch computes bf16 products with its own loops.
bool cpu_has_avx512();
// True if the CPU has AES on 256-bit vectors, with or without AVX-512.
bool cpu_has_vaes();

// True if the CPU multiplies bf16 in hardware. Emulated bf16 is slower than fp32.
bool cpu_has_bf16();

// Short slices: a thread that moves bytes or starts work, and computes little, asks to run as soon
// as it wakes. On busy cores it otherwise waits up to 3 ms for other slices to end, and delays
// every thread that waits for it.

// Applies to the calling thread and the threads that it creates later. Linux has per-thread slices
// since 6.12 (sched_setattr(2), sched_runtime of SCHED_OTHER); earlier kernels ignore it.
void ask_for_short_slices() noexcept;

}  // namespace longshore
