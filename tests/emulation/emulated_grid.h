// A grid of blocks of threads on the host that runs kernels of src/kernels without a GPU. Blocks
// run one after the other; the threads of a block are fibers on the caller's thread, which run in
// warps of 32 until they wait for each other. Each warp runs as far as it can before the next one,
// so data that two warps share without a barrier is used in an unintended order.
//
// [Note: what is a fault] A launch ends in KernelFault, before the access, when a thread reads or
// writes beyond an operand or misaligned; when two threads access one byte, one of them writing,
// without a __syncthreads() of their block between (threads of two blocks: always); when it reads a
// byte that the launch should have written first; when it traps or waits for ended threads.
// Accesses are checked in files compiled with calls to the checker (access_hooks.cpp).
// AddressSanitizer and ThreadSanitizer check them instead in their builds; the rest stays a
// KernelFault.
#pragma once

#include <stdexcept>
#include <string>

namespace longshore::emulation {

class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  constexpr Extent(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
      : x(width), y(height), z(depth) {}
};

// Runs call(argument) as every thread of the grid; `threads` a multiple of 32, at most 1024.
void run_grid(Extent blocks, unsigned threads, void (*call)(const void*), const void* argument);

// Lets the n-th __syncthreads() of each thread pass as if it were absent; 0 leaves out none.
void leave_out_barrier(unsigned nth);
unsigned barriers_of_last_launch();

// The functions below are called only by threads of a running grid.
Extent thread_index();
Extent block_index();
Extent block_size();
Extent grid_size();
void wait_for_block();
// Returns the value of the thread whose lane differs by the bits of `lanes`; all 32 must call it.
float exchange_xor(unsigned mask, float value, int lanes);
[[noreturn]] void fail(const std::string& what);

}  // namespace longshore::emulation
