// A grid of blocks of threads on the host: what kernels of src/kernels run on without a GPU. Blocks
// run one after the other; a block's threads are fibers on the caller's thread, which run in warps
// of 32 until they wait for each other. Each warp goes as far as it can before the next one: what
// two warps share without a barrier is then used in an order that no one meant.
//
// [Note: what is a fault] A launch ends in KernelFault, before the access is made, when a thread
// reads or writes beyond an operand, or misaligned; when two threads touch one byte, one of them
// writing, and no __syncthreads() of their block lies between (threads of two blocks: ever); when a
// byte is read that the launch was to write first; when it traps, or waits for threads that ended.
// Accesses are seen where kernels are compiled with calls to the checker (access_hooks.cpp). Under
// AddressSanitizer and ThreadSanitizer, which then see them, the rest stays a KernelFault.
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

// The n-th __syncthreads() of each thread lets it pass, as if it were not there; 0: none does.
// How many the threads of the last launch came to.
void leave_out_barrier(unsigned nth);
unsigned barriers_of_last_launch();

// What follows is called by threads of a running grid only.
Extent thread_index();
Extent block_index();
Extent block_size();
Extent grid_size();
void wait_for_block();
// The value of the thread whose lane differs by the bits of `lanes`. All 32 come here.
float exchange_xor(unsigned mask, float value, int lanes);
[[noreturn]] void fail(const std::string& what);

}  // namespace longshore::emulation
