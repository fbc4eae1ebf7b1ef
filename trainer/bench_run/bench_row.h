// bench_row makes the result of `longshore bench run`: one JSON object on one line, which people
// paste into an issue and scripts/dev/machines reads. Bytes are bytes, times are seconds, and what
// is unknown is null. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "offload/forecast/machine_rates.h"
#include "offload/plan/tier_plan.h"
#include "trainer/bench_run/bench_plan.h"
#include "trainer/bench_run/block_check.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

// The version of the row's members.
inline constexpr int kBenchRowVersion = 1;

// MeasuredSteps: what the steps of a run took, from its metrics.jsonl.
struct MeasuredSteps {
  std::vector<double> seconds;  // by step
  int64_t tokens = 0;           // of a step
  Bytes device_peak = 0, host_arena = 0, host_peak = 0;
  std::vector<Json> bytes;  // by step, the bytes that it moved, by link
  double first_loss = 0.0, last_loss = 0.0;

  // Returns the median without the first two steps, which allocate and fill caches.
  double median_seconds() const;
};
MeasuredSteps read_measured_steps(const std::string& metrics_file);

struct BenchFacts {
  const BenchRecipe& recipe;
  const BenchTarget& target;
  const BenchPlan& bench;
  const MeasuredRun& run;
  const TierPlan& plan;
  Json forecast;              // forecast_to_json
  const MachineRates* rates;  // null: not known
  const MeasuredSteps& steps;
  Bytes drive_bytes = 0;  // that files took on drives
  const BlockCheck& check;
};
Json bench_row(const BenchFacts& facts);

}  // namespace longshore
