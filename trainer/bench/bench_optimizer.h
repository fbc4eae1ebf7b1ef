// `longshore bench optimizer`: how fast the update is on this machine, and what share of the memory
// bound it reaches. The bound is a pass over the same bytes that only moves them, measured in the
// same process, round by round in turn with the update. Main thread; the work runs on pools.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "shard/state_format.h"

namespace longshore {

struct BenchOptimizerOptions {
  std::vector<std::string> formats;  // none: all
  std::vector<int> threads;          // none: 1, 2, 4, ... up to the physical cores
  int64_t elements = int64_t{1} << 26;
  int64_t rounds = 21;
  std::string simd;  // level of the update's instructions; empty: the best of this CPU
  bool json = false;
};

// Medians over the rounds.
struct OptimizerFigures {
  StateFormat format = StateFormat::kFp32;
  int threads = 1;
  double bytes_per_parameter = 0.0;     // read and written, counted
  double parameters_per_second = 0.0;   // of the update
  double bytes_per_second = 0.0;        // of the update
  double bound_bytes_per_second = 0.0;  // of the pass that only moves
  double share = 0.0;                   // median of each round's bound time / update time
  double share_low = 0.0;               // its quartiles
  double share_high = 0.0;
};

std::vector<OptimizerFigures> measure_optimizer(const BenchOptimizerOptions& options);

int run_bench_optimizer(const BenchOptimizerOptions& options);

}  // namespace longshore
