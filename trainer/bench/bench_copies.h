// BenchCopies: `longshore bench copies` copies the host's arena to a GPU and back and compares with
// the fastest cudaMemcpyAsync. Main thread.
#pragma once

namespace longshore {

struct BenchCopiesOptions {
  int gpu = 0;
  bool json = false;
};

// ConfigError if there is no GPU.
int run_bench_copies(const BenchCopiesOptions& options);

}  // namespace longshore
