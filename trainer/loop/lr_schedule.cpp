#include "trainer/loop/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/schedule_table.h"
#include "trainer/directory/run_directory.h"

namespace longshore {

double lr_at(const ScheduleSection& schedule, double peak_lr, Step step, int64_t total_steps) {
  LONGSHORE_CHECK(step.value >= 1 && total_steps >= 1) << step << " of " << total_steps;
  const int64_t done = std::min(step.value - 1, total_steps);
  const int64_t warmup = schedule.warmup_in(total_steps);
  if (done < warmup) {
    return peak_lr * (static_cast<double>(done) / static_cast<double>(warmup));
  }
  const LrSchedule& shape = lr_schedule_of(schedule.name);
  const double factor =
      shape.factor(schedule, {.warmup = warmup, .done = done, .total = total_steps});
  const double least = shape.has_least ? schedule.min_lr_ratio : 0.0;
  return peak_lr * (factor * (1.0 - least) + least);
}

void check_schedule(const ScheduleSection& schedule, int64_t total_steps, bool first) {
  if (schedule.name != ScheduleSection::Name::kWsd) {
    if (first && schedule.warmup_steps > total_steps) {
      log_warning("schedule.warmup_steps = " + std::to_string(schedule.warmup_steps) +
                  " is longer than the run; it is shortened to the run's " +
                  std::to_string(total_steps) + " steps");
    }
    return;
  }
  const int64_t warmup =
      schedule.warmup_ratio > 0.0 ? schedule.warmup_in(total_steps) : schedule.warmup_steps;
  if (warmup + schedule.decay_steps <= total_steps) return;
  throw ConfigError("the warm-up and schedule.decay_steps take " +
                    std::to_string(warmup + schedule.decay_steps) +
                    " steps, which is more than the run's " + std::to_string(total_steps) +
                    " steps; lower them or raise train.epochs");
}

std::optional<RunConfig> rates_of(const std::string& run_file) {
  std::vector<Override> keys;
  for (const auto& [key, value] : config_values(run_file)) {
    const bool length =
        key == "train.steps" || key == "train.epochs" || key == "train.sequences_per_step";
    if (length || key == "optimizer.lr" || key.starts_with("schedule.")) {
      keys.push_back({key, value});
    }
  }
  try {
    RunConfig config = load_run_config({}, keys, {.complete = false});
    if (config.train.steps > 0 || config.train.epochs > 0.0) return config;
  } catch (const ConfigError&) {
    // A key or a value that this version does not have.
  }
  return std::nullopt;
}

std::string rate_change(const RunRates& before, const RunRates& now, Step last) {
  const Step next(last.value + 1);
  if (last.value == 0 || next.value > now.total_steps) return "";
  const auto rate = [](const RunRates& run, Step step) {
    return lr_at(run.config.schedule, run.config.optimizer.lr, step, run.total_steps);
  };
  const double change = std::abs(rate(now, next) - rate(before, next));
  if (change <= 1e-6 * now.config.optimizer.lr) return "";
  const std::string schedule = now.total_steps == before.total_steps
                                   ? "another schedule"
                                   : "the schedule of " + std::to_string(now.total_steps) +
                                         " steps, no longer of " +
                                         std::to_string(before.total_steps);
  return "the run goes on with " + schedule + ": lr goes from " +
         formatted("%.3g at step %lld to %.3g at step %lld", rate(before, last),
                   static_cast<long long>(last.value), rate(now, next),
                   static_cast<long long>(next.value));
}

}  // namespace longshore
