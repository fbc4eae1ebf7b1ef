// StartedRun: a run that is ready for its next step: its data, its engine with weights or a
// restored checkpoint, and the record of its steps. RunLedger tracks the run's progress and the
// saved steps. Owned by the `train` command; main thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/engine/engine.h"
#include "trainer/checkpoint/run_progress.h"
#include "trainer/data/run_data.h"
#include "trainer/directory/run_directory.h"
#include "trainer/metrics/step_reporter.h"
#include "trainer/metrics/trace_file.h"
#include "trainer/run/frozen_sums.h"
#include "trainer/run/signal_flag.h"
#include "trainer/run/start_check.h"
#include "trainer/setup/run_setup.h"
#include "trainer/use/evaluator.h"
#include "trainer/use/generator.h"
#include "trainer/use/prompt_writer.h"

namespace longshore {

// Thrown after a stop signal while there is nothing to save.
class Stopped : public std::runtime_error {
 public:
  explicit Stopped(int exit_code)
      : std::runtime_error("stopped by a signal"), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Returns whether a start continues an earlier one: with the same run file if a checkpoint exists,
// or with another run file from a saved step.
bool is_resuming(const RunConfig& config, const RunDirectory& directory);

// Returns a check that throws Stopped after a stop signal. `signals` must outlive it.
StopCheck stop_check_of(const SignalFlag& signals);

class RunLedger {
 public:
  // `directory` must outlive the ledger. Only the rank with `first` writes.
  RunLedger(const RunDirectory* directory, bool first) : directory_(*directory), first_(first) {}

  RunProgress progress;

  void note_saved(const std::string& path);
  void note_committed(Step step);
  // Returns whether a checkpoint of the present step exists.
  bool is_saved() const { return saved_step_ == progress.step; }
  const std::string& saved_path() const { return saved_path_; }
  bool is_committed() const { return committed_.has_value(); }
  // Describes the newest checkpoint and commit in one sentence, for messages.
  std::string what_is_saved() const;

  // Returns the content of run.json while the run continues.
  RunStatus status() const;
  // Writes run.json on the first rank. A failure is not fatal: it clears the display and warns.
  void write_status(StepReporter& reporter, bool durable = true) const;
  // Calls write_status at most once a second, not durably, and sets the text that a second stop
  // signal writes to run.json.
  void note_status(StepReporter& reporter, SignalFlag& signals);

 private:
  const RunDirectory& directory_;
  bool first_;
  std::optional<Step> saved_step_;
  std::optional<Step> committed_;  // last commit by the state's tier
  std::string saved_path_;
  std::chrono::steady_clock::time_point status_noted_;
};

// OtherReference: the facts that a start has found about the model of preference.reference.
struct OtherReference {
  struct File {
    std::string path, key;
  };
  std::string model = {};            // StartIdentity::values of it; empty: not known
  std::vector<File> unwritten = {};  // with values that this start computed
};

struct StartedRun {
  // Reads the data, allocates the plan's buffers and loads the model or a checkpoint, on every
  // rank. The record in the run's directory does not change until all ranks have succeeded; then
  // rank 0 calls `begin` with the step that the run resumes from, 0 for a new run. All references
  // must outlive the run. `trace` may be null; it records every pass.
  StartedRun(const MeasuredRun& setup, const TierPlan& plan, const RunDirectory& directory,
             SignalFlag& signals, const std::function<void(Step)>& begin,
             TraceFile* trace = nullptr);

  const RunRanks& ranks() const { return *setup.ranks; }
  DataState data_after_step() const;
  // Returns the record that the tier commits with a step: the progress, with the present router
  // corrections, which rank 0 makes durable first.
  DurableStep durable_step(RunProgress progress) const;
  // Records the step that the last pass committed, if any. Call it after every pass.
  void note_commit();
  // Applies pending updates. Call it before anything except a step reads parameters or state.
  void apply_updates();
  // Compares the frozen values that were read so far with those that the run began with
  // (StartCheck). `passed` says that a pass has read every unit. Collective.
  void check_frozen(bool passed);

  const MeasuredRun& setup;
  const RunDirectory& directory;
  SignalFlag& signals;
  RunLedger ledger;
  TrainingData data;
  std::vector<EvaluationSet> eval_sets;
  std::optional<Objective> objective;   // of the training data; set when steps begin
  std::optional<PromptWriter> prompts;  // set if eval.prompts are given
  SampleRequest samples;                // of eval.prompts
  EvalTracker evaluations;
  OtherReference other_reference;
  // If frozen parameters stay in their files, the engine reads them through this, which checks each
  // later read; otherwise null.
  std::unique_ptr<FrozenSums> frozen;
  StartCheck start_check;
  Engine engine;
  StepReporter reporter;
};

}  // namespace longshore
