// BenchPlan: the run file of a recipe on this machine, as overrides, and what it would take. Of the
// ways to hold the run the first that fits is taken; they change where bytes are, not what is
// computed. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "trainer/bench_run/bench_recipe.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

// The shapes of a step with tiny models, in place of the recipe's.
inline constexpr int64_t kTinyTokens = 64, kTinySequences = 4;

// BenchTarget: what a recipe is run with.
struct BenchTarget {
  std::string model;                // directory with config.json, and weights unless `random`
  bool random = true;               // weights are made in memory
  std::string directory;            // the run's
  std::string rows;                 // file of training data
  std::vector<std::string> drives;  // folder on each drive; may be empty
  std::string device_memory;        // cap, as given; empty: none
  std::string host_memory;          // the same
  int64_t steps = 12;
  bool tiny = false;  // short sequences
};

struct BenchPlan {
  RunArguments arguments;
  std::vector<Override> way;  // the keys that were needed to make it fit; may be empty
  bool fits = false;
  std::string refusal;  // why the last way does not fit, with the arithmetic; empty if one fits
  int64_t parameters = 0;
  Bytes device = 0, host = 0, drives = 0;
};

// Plans without running a unit: temporaries are estimated, and on a usable GPU its own limits
// count. Throws ConfigError or DataError.
BenchPlan plan_bench_run(const BenchRecipe& recipe, const BenchTarget& target);

// Returns a table of all recipes with what they need on this machine under the caps, and which fit.
// `common` gives drives, caps and whether shapes are tiny; a drive may have no folder yet.
// Configurations are written to `directory`.
std::string bench_list(const std::string& directory, const BenchTarget& common);

}  // namespace longshore
