// Trainer: one run from its first step, or its last checkpoint, to its end or a stop signal.
// Owned by the `train` command; its main thread calls it, and the engine for it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/engine/engine.h"
#include "offload/engine/train_step.h"
#include "offload/forecast/plan_check.h"
#include "text/tokenizer.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/data/run_data.h"
#include "trainer/directory/run_directory.h"
#include "trainer/eval_tracker.h"
#include "trainer/report/step_reporter.h"
#include "trainer/report/trace_file.h"
#include "trainer/run/drive_state.h"
#include "trainer/run/run_saver.h"
#include "trainer/run/signal_flag.h"
#include "trainer/setup/run_setup.h"

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

class Trainer {
 public:
  // Reads the data, allocates what the plan says and loads the model or a checkpoint, on every
  // rank. Until nothing of that can refuse the run on any rank, the run's directory stays as it
  // is; then rank 0 calls `begin` with the step that the run goes on from. All references must
  // outlive the trainer; `trace`, where there is one, gets every pass.
  Trainer(const MeasuredRun& setup, const TierPlan& plan, const RunDirectory& directory,
          SignalFlag& signals, const std::function<void(Step)>& begin, TraceFile* trace = nullptr);

  // Says how the first steps compare with what was planned, and hands it over; on one rank. Nothing
  // where there is nothing to compare with.
  void check_plan(std::optional<PlanCheck> check, std::function<void(const PlanCheck&)> done) {
    reporter_.check_plan(std::move(check), std::move(done));
  }
  // Runs to the end or to a stop signal. Returns the exit code.
  int run();
  Step step() const { return progress_.step; }
  // What run.json says of a run that goes on.
  RunStatus status() const;

 private:
  // Checks what can be refused before anything is allocated, and returns the key of the state files
  // on drives, which is of no use without them. Collective.
  RunKey check_run(const MeasuredRun& setup, const TierPlan& plan);
  // CheckpointError where the newest checkpoint is another run's. Collective.
  void refuse_other_run() const;
  // Why the run cannot go on from `saved`, found at `path`; empty where it can.
  std::string difference_from(const RunProgress& saved, const std::string& path) const;
  void load_or_resume(const std::function<void(Step)>& begin);
  // Puts the run's directory in order for a run that goes on from here.
  void begin_record(const std::function<void(Step)>& begin);
  void resume(const std::string& resume);
  // Goes on from what the tier of the state kept; false where it kept nothing.
  bool resume_from_tier();
  // From here on the run continues `saved`, found at `path`.
  void continue_from(const RunProgress& saved, const std::string& path);
  // CheckpointError where a start after so many steps would drop acknowledged ones.
  void check_start(Step start, const std::string& resume) const;
  // Weights from the model's files, looked at while they are read.
  void load_weights();
  // Says that the run begins with random weights, where it does.
  void say_random_weights() const;
  // What the run trains on, for whoever reads about it later.
  void note_data_files() const;
  // The record of the steps, cut to those that the run goes on from.
  void open_metrics();
  // What the tier's commit keeps of the run as it is after the step.
  DurableStep record_after(bool skipped) const;
  // After every pass: tells of the step that it made durable.
  void note_commit();
  // Before anything but a step reads parameters or state.
  void apply_updates();
  // The state that a run begins with, where the tier commits.
  void commit_start();
  // Where the data stands, for whoever saves.
  void note_data();
  DataState data_after_step() const;
  void note_committed_step(Step step);
  void note_status();
  void give_back_heap();
  std::string what_is_saved() const;
  bool record_failed() const { return !reporter_.failure().empty(); }
  void check_metrics();
  void check_applied() const;
  void agree_with_ranks(const TierPlan& plan) const;
  StepOutcome run_step();
  void count_skipped(const StepOutcome& outcome);
  void after_step(const StepOutcome& outcome);
  void save();
  SavedCheckpoint write_checkpoint(const std::string& folder, int64_t keep);
  void evaluate_now();
  void check_prompts(int64_t planned_positions) const;
  void show_samples();
  bool out_of_patience() const;
  int stop();
  int finish();
  StopCheck stop_check() const;

  const RunConfig& config_;
  const PlanInputs& plan_inputs_;
  const ModelSource& source_;
  const RunRanks& ranks_;
  const RunDirectory& directory_;
  SignalFlag& signals_;
  TrainingData data_;
  std::optional<SequenceData> eval_data_;
  std::optional<Tokenizer> tokenizer_;  // only where eval.prompts are given
  EvalTracker evaluations_;
  RunProgress progress_;
  Engine engine_;
  StepReporter reporter_;
  std::optional<Step> saved_step_;
  std::optional<Step> committed_;  // by the tier of the state
  std::chrono::steady_clock::time_point status_noted_, heap_given_back_;
  std::string saved_path_;
  bool passed_ = false;    // a train pass, in this process
  bool stopping_ = false;  // all ranks: after the step that has just ended
};

}  // namespace longshore
