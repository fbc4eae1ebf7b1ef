// parallel_for: LibTorch's threads for loops of our own. The calling thread must compute with
// LibTorch (compute_threads.h).
//
// at::parallel_for is a template over OpenMP: in code that is compiled without OpenMP it runs on
// one thread, without a word. Only this function's source is compiled with it.
#pragma once

#include <cstdint>
#include <functional>

namespace longshore {

// Calls body(first, end) for parts of [begin, end) of at least `grain` items (but the last), on the
// threads of LibTorch, and waits for all. The parts depend on the number of threads, so a result
// must not depend on how items are grouped. Rethrows what a call throws. LibTorch's operations
// inside run on their thread alone.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t, int64_t)>& body);

// Returns how many calls of a body may run at a time. To be asked outside of bodies.
int parallel_threads();

// Returns the number of the calling thread among those of a loop, below parallel_threads().
int parallel_thread();

}  // namespace longshore
