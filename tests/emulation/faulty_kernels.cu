#include "tests/emulation/faulty_kernels.h"

#include <cuda_runtime.h>

namespace longshore::emulation {
namespace {

constexpr int kThreads = 64;  // two warps

__global__ void reverse(int* values, bool barrier) {
  __shared__ int kept[kThreads];
  kept[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncthreads();
  values[threadIdx.x] = kept[kThreads - 1 - threadIdx.x];
}

__global__ void add_up(const int* values, int count, int* sum) {
  for (int i = static_cast<int>(threadIdx.x); i <= count; i += kThreads) {
    const int value = values[i];
    if (i == count) *sum = value;
  }
}

__global__ void number_blocks(int* number) {
  if (threadIdx.x == 0) *number = static_cast<int>(blockIdx.x);
}

// On a real GPU too, the second block sometimes finds what the first one left.
__global__ void remember(int* number) {
  __shared__ int kept;
  if (threadIdx.x == 0 && blockIdx.x == 0) kept = 7;
  __syncthreads();
  if (threadIdx.x == 0) number[blockIdx.x] = kept;
}

__global__ void add_to(int* number) {
  if (threadIdx.x == 0) number[0] += 1;
}

__global__ void end_early(bool some_of_a_warp) {
  if (some_of_a_warp) {
    if (threadIdx.x != 5) __shfl_xor_sync(0xffffffffu, 1.0f, 16);
  } else if (threadIdx.x < 32) {
    __syncthreads();
  }
}

__global__ void copy_wide(uint4* to, const uint4* from) {
  if (threadIdx.x == 0) *to = *from;
}

}  // namespace

void reverse_64(int* values, bool barrier) {
  emulated_launch(reverse, 1, kThreads, values, barrier);
}
void sum_one_too_many(const int* values, int count, int* sum) {
  emulated_launch(add_up, 1, kThreads, values, count, sum);
}
void write_one_place_from_two_blocks(int* number) {
  emulated_launch(number_blocks, 2, kThreads, number);
}
void read_another_blocks_shared_memory(int* two_numbers) {
  emulated_launch(remember, 2, kThreads, two_numbers);
}
void add_to_result(int* number) {
  emulated_launch(add_to, 1, kThreads, number);
}
void end_before_a_barrier() {
  emulated_launch(end_early, 1, kThreads, false);
}
void end_before_an_exchange() {
  emulated_launch(end_early, 1, kThreads, true);
}
void copy_16_bytes(void* to, const void* from) {
  emulated_launch(copy_wide, 1, kThreads, static_cast<uint4*>(to), static_cast<const uint4*>(from));
}

}  // namespace longshore::emulation
