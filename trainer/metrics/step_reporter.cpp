#include "trainer/metrics/step_reporter.h"

#include <array>

#include "base/log.h"
#include "trainer/device/run_environment.h"

namespace longshore {

void StepReporter::check_plan(std::optional<PlanCheck> check,
                              std::function<void(const PlanCheck&)> done) {
  plan_check_ = std::move(check);
  plan_checked_ = std::move(done);
}

void StepReporter::begin_steps() {
  payload_before_ = engine_->payload();
  drives_before_ = engine_->drive_traffic();
  // The first step does not count passes that ran before it, such as those of a reference.
  copied_before_ = engine_->copies().counts();
  engine_->take_ledger();
  engine_->take_times();
}

void StepReporter::add(StepRecord record, const StepOutcome& outcome, int64_t total_steps) {
  take_outcome(record, outcome);
  take_counts(record);
  write(record);
  seconds_per_step_ =
      seconds_per_step_ == 0.0 ? record.seconds : 0.9 * seconds_per_step_ + 0.1 * record.seconds;
  // A single step's loss is noisy, so the display also shows the mean of about ten.
  if (!outcome.skipped) mean_loss_ = 0.9 * mean_loss_.value_or(outcome.loss) + 0.1 * outcome.loss;
  if (first_) show(record, total_steps);
}

void StepReporter::take_outcome(StepRecord& record, const StepOutcome& outcome) const {
  record.loss = outcome.loss;
  record.grad_norm = outcome.norm.norm;
  record.clip_scale = outcome.clip_scale;
  record.tokens_per_second = static_cast<double>(record.tokens) / record.seconds;
  record.times = outcome.times;
  const DeviceMemory::Usage device = engine_->memory().usage();
  record.memory = {.device_peak = device.peak(),
                   .device_plan = engine_->plan().device.total,
                   .device_tensors = device.workspace.tensors_peak,
                   .allocator_retries = device.workspace.retries,
                   .host_pinned = engine_->store().host_bytes(),
                   .host_rss = resident_bytes()};
  const RouterShape shape = engine_->routers();
  if (shape.asked()) {
    const RouterStatistics figures = router_statistics(shape, outcome.routers);
    if (shape.balance != 0.0) record.aux_loss = figures.balance_loss;
    if (shape.watched) record.router = figures;
  }
  const HitCount& tokens = outcome.sums.tokens;
  record.token_accuracy = tokens.accuracy();
  if (tokens.measured > 0) {
    record.entropy = tokens.entropies / static_cast<double>(tokens.measured);
  }
  record.skipped = outcome.skipped;
}

void StepReporter::take_counts(StepRecord& record) {
  const CopyEngine::Counts copied = engine_->copies().counts();
  const DriveTraffic drives = engine_->drive_traffic();
  record.bytes = {{"h2d", copied.to_device - copied_before_.to_device},
                  {"d2h", copied.to_host - copied_before_.to_host},
                  {"update", engine_->take_update_bytes()},
                  {"drive_read", drives.read - drives_before_.read},
                  {"drive_write", drives.written - drives_before_.written},
                  {"file_read", drives.files - drives_before_.files}};
  copied_before_ = copied;
  drives_before_ = drives;
  const PayloadCounters::Totals payload = engine_->payload();
  for (CommKind kind : {CommKind::kAllGather, CommKind::kReduceScatter, CommKind::kAllReduce}) {
    record.bytes.emplace_back(name_of(kind),
                              payload.of(kind).payload - payload_before_.of(kind).payload);
  }
  payload_before_ = payload;
  const LaneLedger ledger = engine_->take_ledger();
  for (size_t i = 0; i < kLaneCount; ++i) {
    const auto lane = static_cast<Lane>(i);
    if (lane == Lane::kCompute) continue;
    record.stall_seconds.emplace_back(name_of(lane), ledger.of(lane).stall_seconds);
  }
  compare_with_plan(record.seconds, ledger);
}

void StepReporter::compare_with_plan(double seconds, const LaneLedger& ledger) {
  if (!plan_check_) return;
  std::array<double, kLaneCount> busy = {};
  for (size_t i = 0; i < kLaneCount; ++i) busy[i] = ledger.of(static_cast<Lane>(i)).busy_seconds;
  plan_check_->add(seconds, busy);
  if (!plan_check_->complete()) return;
  clear_display();
  log_info(plan_check_->text() + "; the next plan uses it");
  plan_checked_(*plan_check_);
  plan_check_.reset();
}

void StepReporter::show(const StepRecord& record, int64_t total_steps) {
  LiveRun run{
      .total_steps = total_steps,
      .mean_loss = mean_loss_,
      .host_plan_bytes = engine_->plan().host.total,
      .eta_seconds = seconds_per_step_ * static_cast<double>(total_steps - record.step.value)};
  if (record.times.size() > 1) {
    const SlowestRank slowest = slowest_of(record.times);
    run.wall = "rank " + std::to_string(slowest.rank.value) + " " + std::string(slowest.resource);
  }
  live_line_.show(record, run);
}

}  // namespace longshore
