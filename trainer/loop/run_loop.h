// RunLoop: runs the steps of a started run with its evaluations and checkpoints, until its end or a
// stop signal. Owned by the `train` command; main thread.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "base/batch.h"
#include "device/device_memory.h"
#include "offload/plan/tier_plan.h"
#include "trainer/loop/started_run.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {

// Whether a loop writes checkpoints. kNo is for runs whose result nobody needs: nothing is saved at
// the end, after a stop signal or on request, and checkpoint.export must be "never".
enum class SavesRun : uint8_t { kNo, kYes };

class RunLoop {
 public:
  // `run` must outlive the loop.
  explicit RunLoop(StartedRun* run, SavesRun saves = SavesRun::kYes)
      : run_(*run), config_(run->setup.config), saves_(saves == SavesRun::kYes) {}

  // Runs the loop and returns the exit code.
  int run();
  // Returns the failure, already printed, after which the run saved and stopped; empty if there was
  // none.
  const std::string& failure() const { return failure_; }
  // Returns the directory of the export at the run's end; empty if there was none.
  const std::string& exported() const { return exported_; }

 private:
  Step step() const { return run_.ledger.progress.step; }
  RankShare share() const { return {run_.ranks().rank(), run_.ranks().info().size}; }
  StepOutcome run_step();
  double kl_of_step();
  // Returns the payload of the tier's commit: the run's progress after the present step.
  DurableStep record_after(bool skipped) const;
  void count_skipped(const StepOutcome& outcome);
  void note_zero_gradient(const StepOutcome& outcome);
  void after_step(const StepOutcome& outcome);
  void trim_heap();
  void evaluate_now();
  void show_samples();
  bool out_of_patience() const;
  SavedCheckpoint write_checkpoint(const std::string& folder, int64_t keep);
  void save();
  void save_unless_saved();
  int stop();
  int finish();
  // Returns how many steps this process trained, how long that took, and the last loss.
  std::string trained_text() const;
  void export_model();
  bool record_failed();
  void warn_of_events();
  void check_metrics();

  StartedRun& run_;
  const RunConfig& config_;
  bool saves_;
  std::chrono::steady_clock::time_point heap_given_back_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  int64_t steps_run_ = 0;   // by this process
  double last_loss_ = 0.0;  // of the newest step
  bool passed_ = false;     // this process has run a train pass
  bool stop_seen_ = false;  // a stop signal was received
  bool zero_gradient_seen_ = false;
  bool stopping_ = false;   // the run stops after the last step; equal on all ranks
  std::string stop_cause_;  // the first failure of the record or the drives that stops the run
  std::string failure_;
  std::string exported_;
  bool events_warned_ = false;
};

// Checks a plan whose workspace was not measured at the run's own shape; `usage` is the memory of a
// pass over `batches`. Throws OutOfMemoryError, with the key to change, if according to `usage` a
// pass over full micro-batches will not fit; warns if the pass only takes more than planned. Runs
// with updates in backward have measured plans (setup/measured_run.cpp).
void check_first_pass(const PlanInputs& inputs, const TierPlan& plan,
                      const DeviceMemory::Usage& usage, std::span<const Batch> batches);

}  // namespace longshore
