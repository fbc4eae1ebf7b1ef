// bench_run: `longshore bench run`: one of the fixed recipes on this machine, under a cap. It makes
// the plan and prints it, trains a few steps as `train` does, checks the bits of one block, and
// prints a row that compares plan and measurement. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longshore {

struct BenchRunOptions {
  std::string recipe;
  std::string model;              // directory with given weights; empty: random ones
  std::string device_memory;      // cap; empty: the device's memory
  std::string host_memory;        // the same of host memory
  std::vector<std::string> nvme;  // one directory on each drive
  std::string keep;               // run directory to keep; empty: a temporary one
  std::string out;                // file that the row is appended to; empty: none
  int64_t steps = 12;
  bool tiny = false;  // shapes of a test, seconds on a CPU
  bool list = false;  // only show the recipes
};

// Prints the row on standard output and returns the exit code. Throws DoesNotFitError with the
// recipes that would fit, and ConfigError.
int run_bench_run(const BenchRunOptions& options);

}  // namespace longshore
