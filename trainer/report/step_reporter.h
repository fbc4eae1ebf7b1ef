// StepReporter: what a run says of its steps: their record (metrics.jsonl), the display, and how
// the first ones compare with the plan. Owned by the trainer; its thread. The first rank's writes
// and shows; on other ranks it says nothing.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "offload/engine/engine.h"
#include "offload/forecast/plan_check.h"
#include "trainer/report/live_line.h"
#include "trainer/report/metrics.h"
#include "trainer/train_step.h"

namespace longshore {

// A step that has ended, as far as its outcome does not say it.
struct EndedStep {
  Step step = {};
  int64_t total_steps = 0;
  int64_t tokens = 0, trained_tokens = 0, sequences = 0;
  double epoch = 0.0;  // after it
  double lr = 0.0;
  double seconds = 0.0;
  int64_t skipped_total = 0;
};

class StepReporter {
 public:
  // `engine` must outlive it. `first`: of the ranks.
  StepReporter(Engine* engine, bool first, const LiveLineOptions& options)
      : engine_(engine), first_(first), live_line_(options) {}

  // From here on records go to the file.
  void open(MetricsFile metrics) { metrics_ = std::move(metrics); }
  // Says how the first steps compare with what was planned, and hands it over. Nothing where there
  // is nothing to compare with.
  void check_plan(std::optional<PlanCheck> check, std::function<void(const PlanCheck&)> done);
  // What the engine moved so far is no step's.
  void begin_steps();
  // Takes what the engine counted since the step before.
  void add(const EndedStep& ended, const StepOutcome& outcome);

  // A line of the record, where there is one.
  template <typename Record>
  void write(const Record& record) {
    if (metrics_) metrics_->write(record);
  }
  // Why lines of the record wait; empty while none does.
  std::string failure() const { return metrics_ ? metrics_->failure() : std::string(); }
  void sync() {
    if (metrics_) metrics_->sync();
  }
  // Messages go where the display stands: it is drawn again with the next step.
  void clear_display() { live_line_.clear(); }
  void finish_display() { live_line_.finish(); }

 private:
  StepRecord record_of(const EndedStep& ended, const StepOutcome& outcome) const;
  void take_counts(StepRecord& record);
  void compare_with_plan(double seconds, const LaneLedger& ledger);
  void show(const EndedStep& ended, const StepRecord& record, const StepOutcome& outcome);

  Engine* engine_;
  bool first_;
  LiveLine live_line_;
  std::optional<MetricsFile> metrics_;
  std::optional<PlanCheck> plan_check_;  // until it is complete
  std::function<void(const PlanCheck&)> plan_checked_;
  double seconds_per_step_ = 0.0;  // smoothed, for the time left
  // As they stood after the step before.
  PayloadCounters::Totals payload_before_;
  CopyEngine::Counts copied_before_;
  DriveTraffic drives_before_;
};

}  // namespace longshore
