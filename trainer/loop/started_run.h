// StartedRun: a run that is ready for its next step: its data, its engine with weights or a
// restored checkpoint, and the record of its steps. RunLedger says how far it is and what of it is
// saved. Owned by the `train` command; main thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "offload/engine/engine.h"
#include "text/tokenizer.h"
#include "trainer/checkpoint/run_progress.h"
#include "trainer/data/run_data.h"
#include "trainer/directory/run_directory.h"
#include "trainer/report/step_reporter.h"
#include "trainer/report/trace_file.h"
#include "trainer/run/signal_flag.h"
#include "trainer/setup/run_setup.h"
#include "trainer/use/evaluator.h"

namespace longshore {

// A stop signal came where nothing had to be saved.
class Stopped : public std::runtime_error {
 public:
  explicit Stopped(int exit_code)
      : std::runtime_error("stopped by a signal"), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Throws Stopped after a stop signal. `signals` must outlive it.
StopCheck stop_check_of(const SignalFlag& signals);

class RunLedger {
 public:
  // `directory` must outlive it. `first`: of the ranks, which alone writes.
  RunLedger(const RunDirectory* directory, bool first) : directory_(*directory), first_(first) {}

  RunProgress progress;

  void note_saved(const std::string& path);
  void note_committed(Step step);
  // Whether a checkpoint of the present step exists.
  bool is_saved() const { return saved_step_ == progress.step; }
  const std::string& saved_path() const { return saved_path_; }
  bool is_committed() const { return committed_.has_value(); }
  // One sentence on the newest checkpoint and commit, for messages.
  std::string what_is_saved() const;

  // The content of run.json while the run goes on.
  RunStatus status() const;
  // Writes run.json on the first rank; a failure is a warning on a cleared display.
  void write_status(StepReporter& reporter, bool durable = true) const;
  // write_status at most once a second, and not durably; also prepares what a second stop signal
  // leaves in run.json.
  void note_status(StepReporter& reporter, SignalFlag& signals);

 private:
  const RunDirectory& directory_;
  bool first_;
  std::optional<Step> saved_step_;
  std::optional<Step> committed_;  // by the tier of the state
  std::string saved_path_;
  std::chrono::steady_clock::time_point status_noted_;
};

struct StartedRun {
  // Reads the data, allocates what the plan says and loads the model or a checkpoint, on every
  // rank. Until nothing of that can refuse the run on any rank, the run's directory stays as it
  // is; then rank 0 calls `begin` with the step that the run resumes from, 0 for a new one. All
  // references must outlive the run; `trace`, where there is one, gets every pass.
  StartedRun(const MeasuredRun& setup, const TierPlan& plan, const RunDirectory& directory,
             SignalFlag& signals, const std::function<void(Step)>& begin,
             TraceFile* trace = nullptr);

  const RunRanks& ranks() const { return *setup.ranks; }
  DataState data_after_step() const;
  // After every pass: tells of the step that it made durable.
  void note_commit();
  // Before anything but a step reads parameters or state.
  void apply_updates();

  const MeasuredRun& setup;
  const RunDirectory& directory;
  SignalFlag& signals;
  RunLedger ledger;
  TrainingData data;
  std::optional<SequenceData> eval_data;
  std::optional<Tokenizer> tokenizer;  // only where eval.prompts are given
  EvalTracker evaluations;
  Engine engine;
  StepReporter reporter;
};

}  // namespace longshore
