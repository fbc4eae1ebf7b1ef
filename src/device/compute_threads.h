// compute_threads: the number of threads that LibTorch computes with, the settings that make its
// bits repeat, and loops of our own on these threads. The main thread sets them at the start,
// before LibTorch computes anything.
//
// at::parallel_for is a template over OpenMP: in code that is compiled without OpenMP it silently
// runs on one thread. Only compute_threads.cpp is compiled with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace longshore {

struct ComputeSettings {
  int threads = 1;  // intra-op
  int inter_op_threads = 1;
  std::string mkl_cbwr;  // MKL's reproducible mode, "AVX512,STRICT"; empty if it has none
};

// Sets MKL's strict reproducible mode, `threads` (>= 1) intra-op threads and one inter-op thread,
// and returns the settings in force. Call it before the first tensor: MKL reads its mode at its
// first use.
ComputeSettings set_compute_threads(int threads);

// Every thread that computes with LibTorch calls this first: LibTorch applies the process's setting
// to a thread only when that thread asks. Returns the number of threads.
int adopt_compute_threads();

// Calls body(first, end) for parts of [begin, end) of at least `grain` items (but the last), on the
// threads of LibTorch, and waits for all. The parts depend on the number of threads, so a result
// must not depend on how items are grouped. Rethrows what a call throws. LibTorch's operations
// inside a body run on its thread alone.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t, int64_t)>& body);

// Returns how many calls of a body may run at the same time. Call it outside of bodies.
int parallel_threads();

// Returns the number of the calling thread among those of a loop, below parallel_threads().
int parallel_thread();

}  // namespace longshore
