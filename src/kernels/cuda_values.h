// cuda_values: values of a dtype on the GPU, sums over a thread block, and launches. Only *.cu
// files include it. Sums use a fixed tree, so results are bitwise repeatable. tests/emulation
// compiles these files for the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "base/errors.h"
#include "device/cuda_check.h"

namespace longshore::kernels {

constexpr int kWarp = 32;
constexpr int kMostThreads = 512;

__device__ __forceinline__ float to_float(float value) {
  return value;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <typename T>
__device__ __forceinline__ T rounded_to(float value);
template <>
__device__ __forceinline__ float rounded_to<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 rounded_to<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <typename T>
__device__ __forceinline__ float rounded(float value) {
  return to_float(rounded_to<T>(value));
}

// The values of one load: 16 bytes, or kValues values.
template <typename T, int kValues = 16 / sizeof(T)>
struct alignas(kValues * sizeof(T)) Lot {
  static constexpr int kCount = kValues;
  T values[kCount];
};

// Loads or stores kCount values, as many at a time as 16 bytes have: all of them, if they are
// fewer. `kCount` is a power of two or a multiple of a lot, and the address a multiple of a load's
// bytes.
template <int kCount, typename T>
__device__ __forceinline__ void load_values(const T* from, T (&values)[kCount]) {
  using Some = Lot < T, kCount<Lot<T>::kCount ? kCount : Lot<T>::kCount>;
  for (int lot = 0; lot < kCount / Some::kCount; ++lot) {
    const Some some = reinterpret_cast<const Some*>(from)[lot];
    for (int i = 0; i < Some::kCount; ++i) values[lot * Some::kCount + i] = some.values[i];
  }
}
template <int kCount, typename T>
__device__ __forceinline__ void store_values(T* to, const T (&values)[kCount]) {
  using Some = Lot < T, kCount<Lot<T>::kCount ? kCount : Lot<T>::kCount>;
  for (int lot = 0; lot < kCount / Some::kCount; ++lot) {
    Some some;
    for (int i = 0; i < Some::kCount; ++i) some.values[i] = values[lot * Some::kCount + i];
    reinterpret_cast<Some*>(to)[lot] = some;
  }
}

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Most {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

// Returns the combination of all threads' values to every thread. All threads of the block must
// call it; blockDim.x is a multiple of 32 and at most 1024.
template <typename Combine>
__device__ __forceinline__ float over_block(float value, Combine combine, float neutral) {
  __shared__ float of_warps[kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  __syncthreads();  // an earlier call may still read of_warps
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = threadIdx.x % kWarp < blockDim.x / kWarp ? of_warps[threadIdx.x % kWarp] : neutral;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Returns the threads for a row of `width` values: whole warps, with a few values for each thread.
inline int threads_for(int64_t width) {
  int threads = kWarp;
  while (threads < kMostThreads && threads * 4 < width) threads *= 2;
  return threads;
}

// Returns the blocks for `work` items; a grid covers more items with strides.
inline unsigned blocks_for(int64_t work) {
  constexpr int64_t kMost = int64_t{1} << 20;
  return static_cast<unsigned>(work < kMost ? work : kMost);
}

// Runs kernel(arguments...) on `blocks` blocks of `threads` threads.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, cudaStream_t stream,
            Arguments... arguments) {
#ifdef __CUDACC__
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
#else
  static_cast<void>(stream);
  emulated_launch(kernel, blocks, threads, arguments...);
#endif
}

inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), std::string("launch ") + kernel);
}

// Calls body(T()) with the device type of the dtype.
template <typename Body>
void with_cuda_type(DType dtype, const Body& body) {
  LONGSHORE_CHECK(dtype != DType::kF16) << "kernels compute in fp32 and bf16";
  if (dtype == DType::kF32) {
    body(float());
  } else {
    body(__nv_bfloat16());
  }
}

inline bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Calls body(T(), values per load): a lot of 16 bytes if `lots`, else single values.
template <typename Body>
void with_cuda_width(DType dtype, bool lots, const Body& body) {
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (lots) {
      body(type, std::integral_constant<int, Lot<T>::kCount>());
    } else {
      body(type, std::integral_constant<int, 1>());
    }
  });
}

}  // namespace longshore::kernels
