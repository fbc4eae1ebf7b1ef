// RunLoop: the steps of a started run, to its end or a stop signal, with evaluations and
// checkpoints on the way. Owned by the `train` command; its main thread calls it, and the engine
// for it.
#pragma once

#include <chrono>
#include <string>

#include "trainer/loop/started_run.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {

class RunLoop {
 public:
  // `run` must outlive the loop.
  explicit RunLoop(StartedRun* run) : run_(*run), config_(run->setup.config) {}

  // Returns the exit code.
  int run();

 private:
  Step step() const { return run_.ledger.progress.step; }
  StepOutcome run_step();
  // What the tier's commit keeps of the run as it is after the step.
  DurableStep record_after(bool skipped) const;
  void count_skipped(const StepOutcome& outcome);
  void after_step(const StepOutcome& outcome);
  void give_back_heap();
  void evaluate_now();
  void show_samples();
  bool out_of_patience() const;
  SavedCheckpoint write_checkpoint(const std::string& folder, int64_t keep);
  void save();
  int stop();
  int finish();
  void export_model();
  void check_metrics();

  StartedRun& run_;
  const RunConfig& config_;
  std::chrono::steady_clock::time_point heap_given_back_;
  bool passed_ = false;    // a train pass, in this process
  bool stopping_ = false;  // all ranks: after the step that has just ended
};

}  // namespace longshore
