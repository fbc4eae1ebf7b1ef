// Stands in for nvcc and the CUDA runtime where kernels are compiled for the host: keywords of the
// language, and the functions that src/kernels calls on a GPU. A kernel that uses more does not
// compile.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <bit>
#include <cstdint>

#include "tests/emulation/emulated_grid.h"

#define __global__
#define __device__
#define __forceinline__ inline
// One block runs at a time, so memory shared by its threads is static. Its bytes count as unwritten
// at the start of each block (access_checker.h).
#define __shared__ static

#define threadIdx (::longshore::emulation::thread_index())
#define blockIdx (::longshore::emulation::block_index())
#define blockDim (::longshore::emulation::block_size())
#define gridDim (::longshore::emulation::grid_size())

using dim3 = longshore::emulation::Extent;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline void __syncthreads() {
  longshore::emulation::wait_for_block();
}
inline float __shfl_xor_sync(unsigned mask, float value, int lanes) {
  return longshore::emulation::exchange_xor(mask, value, lanes);
}
inline void __trap() {
  longshore::emulation::fail("traps");
}

inline float rsqrtf(float value) {
  return 1.0f / sqrtf(value);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}

// Runs kernel(arguments...) on `blocks` blocks of `threads` threads, like <<<blocks, threads>>>.
template <typename... Parameters, typename... Arguments>
void emulated_launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
                     Arguments... arguments) {
  // The launcher's memory is not the GPU's, so its reads are not checked.
  const auto body = [=]() __attribute__((no_sanitize_thread)) { kernel(arguments...); };
  const auto run = [](const void* call) __attribute__((no_sanitize_thread)) {
    (*static_cast<decltype(&body)>(call))();
  };
  longshore::emulation::run_grid(blocks, threads, run, &body);
}
