// The learning rate of every step. Pure functions but for a warning; any thread.
//
// With s = step - 1 (steps already done), T = total steps, W = warmup_steps, or warmup_ratio of T
// rounded up, but at most T, p = (s - W) / (T - W), r = min_lr_ratio, C = cycles, D = decay_steps
// and N = timescale, the rate is the peak rate times
//   s < W                 s / W                                in every schedule
//   constant              1
//   linear                r + (1 - r) * (1 - p)
//   cosine                r + (1 - r) * (1 + cos(pi * p)) / 2
//   cosine_with_restarts  r + (1 - r) * (1 + cos(pi * (C * p mod 1))) / 2, and r where p = 1
//   polynomial            r + (1 - r) * (1 - p) ^ power
//   inverse_sqrt          1 / sqrt(1 + (s - W) / N), with N = W, or 10 000 if W = 0, for N = 0
//   wsd                   1 while s < T - D, then with q = (s - (T - D)) / D and decay_type
//     linear              r + (1 - r) * (1 - q)
//     cosine              r + (1 - r) * (1 + cos(pi * q)) / 2
//     1-sqrt              r + (1 - r) * (1 - sqrt(q))
// A step beyond T has the rate of s = T. config/schedule_table.cpp has a row for each.
//
// transformers' Trainer has the same rates: constant, linear and cosine "with warmup"
// (cosine_with_min_lr if r > 0), cosine_with_restarts if r = 0, polynomial with lr_end = r * peak,
// inverse_sqrt, and wsd (warmup_stable_decay), whose warm-up begins at r there. The first of W > 0
// warm-up steps has rate 0, as in transformers' others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "config/run_config.h"

namespace longshore {

// Returns the rate of `step` (from 1) in a run of `total_steps` (>= 1).
double lr_at(const ScheduleSection& schedule, double peak_lr, Step step, int64_t total_steps);

// Throws if the schedule's fall does not fit into the run; a length in epochs needs the data. Only
// warns of a warm-up that is longer than the run, and shortens it, because users try a run file
// with few steps.
void check_schedule(const ScheduleSection& schedule, int64_t total_steps, bool first);

// Returns the keys of a resolved run file that the learning rate depends on; nullopt if another
// version wrote them in a way that this one cannot read, or if they give no length.
std::optional<RunConfig> rates_of(const std::string& run_file);

// RunRates: a run file and the number of steps of its run.
struct RunRates {
  const RunConfig& config;
  int64_t total_steps;
};

// Returns a sentence about the learning rates of step `last` and the next step, if the next step's
// rate differs from its rate before the resume; "" otherwise, and at the end of a run.
std::string rate_change(const RunRates& before, const RunRates& now, Step last);

}  // namespace longshore
