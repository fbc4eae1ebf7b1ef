// StepReporter: reports steps in metrics.jsonl and on the display, and compares the first ones with
// the plan. Owned by the trainer and used on its thread. Only rank 0's reporter writes and
// displays.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "offload/engine/engine.h"
#include "offload/engine/train_step.h"
#include "offload/forecast/step_forecast.h"
#include "trainer/metrics/live_line.h"
#include "trainer/metrics/metrics.h"

namespace longshore {

class StepReporter {
 public:
  // `engine` must outlive the reporter. `first` is true on rank 0.
  StepReporter(Engine* engine, bool first, const LiveLineOptions& options)
      : engine_(engine), first_(first), live_line_(options) {}

  // Records are written to `metrics` after this call.
  void open(MetricsFile metrics) { metrics_ = std::move(metrics); }
  // Compares the first steps with the plan, logs the result and passes it to `done`. Does nothing
  // if `check` is empty.
  void check_plan(std::optional<PlanCheck> check, std::function<void(const PlanCheck&)> done);
  // Excludes the bytes that the engine has moved so far from the first step.
  void begin_steps();
  // Records a step with its outcome, and the bytes and times that the engine counted since the step
  // before. `record` has the step's number, rate, tokens, sequences, epoch, seconds, the loss's
  // figures, and the number of steps skipped so far.
  void add(StepRecord record, const StepOutcome& outcome, int64_t total_steps);

  // Writes a line to metrics.jsonl if it is open.
  template <typename Record>
  void write(const Record& record) {
    if (metrics_) metrics_->write(record);
  }
  // The reason why lines are still in memory; empty if none are.
  std::string failure() const { return metrics_ ? metrics_->failure() : std::string(); }
  std::string events_failure() const {
    return metrics_ ? metrics_->events_failure() : std::string();
  }
  void sync() {
    if (metrics_) metrics_->sync();
  }
  // Removes the display so that a message can be printed. The next step draws it again.
  void clear_display() { live_line_.clear(); }
  void finish_display() { live_line_.finish(); }
  void make_room_for(std::string_view text) { live_line_.make_room_for(text); }

 private:
  void take_outcome(StepRecord& record, const StepOutcome& outcome) const;
  void take_counts(StepRecord& record);
  void compare_with_plan(double seconds, const LaneLedger& ledger);
  void show(const StepRecord& record, int64_t total_steps);

  Engine* engine_;
  bool first_;
  LiveLine live_line_;
  std::optional<MetricsFile> metrics_;
  std::optional<PlanCheck> plan_check_;  // empty once it is complete
  std::function<void(const PlanCheck&)> plan_checked_;
  double seconds_per_step_ = 0.0;    // exponential mean, for the remaining time
  std::optional<double> mean_loss_;  // exponential mean of steps that were not skipped
  // Counters at the end of the step before.
  PayloadCounters::Totals payload_before_;
  CopyEngine::Counts copied_before_;
  DriveTraffic drives_before_;
};

}  // namespace longshore
