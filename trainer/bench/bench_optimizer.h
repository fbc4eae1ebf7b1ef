// `longshore bench optimizer` measures the update's speed and its share of the
// memory bound. The bound is a pass that only moves the same bytes, alternating with the update in
// the same process. Main thread; the work runs on pools.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "shard/state_format.h"

namespace longshore {

struct BenchOptimizerOptions {
  std::vector<std::string> formats;  // empty: all
  std::vector<int> threads;          // empty: 1, 2, 4, ... up to the physical cores
  int64_t elements = int64_t{1} << 26;
  int64_t rounds = 21;
  std::string simd;  // SIMD level of the update; empty: the best of this CPU
  bool json = false;
};

// OptimizerFigures: medians over the rounds.
struct OptimizerFigures {
  StateFormat format = StateFormat::kFp32;
  int threads = 1;
  double bytes_per_parameter = 0.0;     // bytes read and written, computed
  double parameters_per_second = 0.0;   // speed of the update
  double bytes_per_second = 0.0;        // speed of the update
  double bound_bytes_per_second = 0.0;  // speed of the moving pass
  double share = 0.0;                   // median of each round's bound time / update time
  double share_low = 0.0;               // quartiles of `share`
  double share_high = 0.0;
};

std::vector<OptimizerFigures> measure_optimizer(const BenchOptimizerOptions& options);

int run_bench_optimizer(const BenchOptimizerOptions& options);

}  // namespace longshore
