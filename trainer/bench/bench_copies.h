// `longshore bench copies`: the host's arena to a GPU and back, beside the best cudaMemcpyAsync.
// Main thread.
#pragma once

namespace longshore {

struct BenchCopiesOptions {
  int gpu = 0;
  bool json = false;
};

// ConfigError without a GPU.
int run_bench_copies(const BenchCopiesOptions& options);

}  // namespace longshore
