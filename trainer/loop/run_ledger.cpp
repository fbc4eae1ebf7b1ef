// RunLedger of started_run.h: what of a run is saved, and run.json.
#include <chrono>

#include "base/errors.h"
#include "base/log.h"
#include "trainer/directory/drive_record.h"
#include "trainer/loop/started_run.h"
#include "trainer/run/drive_state.h"
#include "trainer/run/signal_flag.h"

namespace longshore {
namespace {

constexpr double kStatusSeconds = 1.0;

}  // namespace

void RunLedger::note_saved(const std::string& path) {
  saved_step_ = progress.step;
  saved_path_ = path;
}

void RunLedger::note_committed(Step step) {
  const bool first_of_all = step.value > 0 && (!committed_ || committed_->value == 0);
  if (first_of_all && first_) longshore::note_committed(directory_.path(), true);
  committed_ = step;
}

std::string RunLedger::what_is_saved() const {
  std::string text = saved_step_ ? "the run is saved after step " +
                                       std::to_string(saved_step_->value) + " in " + saved_path_
                                 : "no checkpoint of it is saved by this process";
  if (committed_) {
    text += "; the drives hold it after step " + std::to_string(committed_->value);
  }
  return text;
}

RunStatus RunLedger::status() const {
  return {.exit_code = std::nullopt,
          .step = progress.step,
          .saved_step = saved_step_,
          .committed_step = committed_,
          .message = ""};
}

void RunLedger::write_status(StepReporter& reporter, bool durable) const {
  if (!first_) return;
  try {
    durable ? directory_.write_status(status()) : directory_.note_status(status());
  } catch (const IoError& error) {
    reporter.clear_display();
    log_warning(error.what());  // not fatal
  }
}

void RunLedger::note_status(StepReporter& reporter, SignalFlag& signals) {
  if (!first_) return;
  RunStatus interrupted = status();
  interrupted.state = RunStatus::State::kStopped;
  interrupted.exit_code = static_cast<int>(ExitCode::kInterrupted);
  interrupted.message = "interrupted twice; nothing was saved after saved_step";
  signals.set_last_words(directory_.file("run.json"), RunDirectory::status_text(interrupted));
  const auto now = std::chrono::steady_clock::now();
  if (std::chrono::duration<double>(now - status_noted_).count() < kStatusSeconds) return;
  status_noted_ = now;
  write_status(reporter, /*durable=*/false);
}

}  // namespace longshore
