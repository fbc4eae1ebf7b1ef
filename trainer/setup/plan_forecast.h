// PlanForecast: forecasts the time of a run's plans from the rates of the target machine. Made by
// the command after the units are resolved; main thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "offload/forecast/common_machines.h"
#include "offload/forecast/forecast_text.h"
#include "offload/forecast/step_forecast.h"
#include "trainer/setup/known_rates.h"
#include "trainer/setup/run_file_draft.h"

namespace longshore {

// Returns the machine of that name (common_machines.h) or of a description file, changed. Throws
// IoError, or ConfigError if `named` is neither or the description has mistakes.
DescribedMachine read_machine(const std::string& named, const MachineChanges& changes = {});

class PlanForecast {
 public:
  // `described` is the target machine; empty: the local one. `setup` must outlive this object.
  explicit PlanForecast(const MeasuredRun* setup,
                        std::optional<DescribedMachine> described = std::nullopt);

  // Returns whether the machine's rates are known.
  bool known() const { return machine_.has_value(); }
  // Returns whether forecasts can tell micro-batch sizes apart: the run's units were timed on this
  // machine with two sizes.
  bool tells_micro_batches_apart();
  StepForecast step(const PlanInputs& inputs, const TierPlan& plan);
  // Returns the new tokens per second of all sequences that the plan decodes at the same time;
  // empty if it decodes none or a rate is missing.
  std::optional<double> decoded_per_second(const TierPlan& plan);
  // Returns the seconds of each operation of the train pass; empty if a rate is missing.
  std::vector<double> operations(const TierPlan& plan);
  PlanSearch search(const SearchScope& scope);
  // Returns the plan's forecast; with `changes` also the forecasts of single changed keys.
  PlanScreen screen(const TierPlan& plan, bool changes);

  // Returns the check for a run's first steps; empty without a forecast.
  std::optional<PlanCheck> check(const TierPlan& plan);
  // Stores the measured factors of `check` in the cache for the next plan.
  void learn(const PlanCheck& check) const;

 private:
  // Returns the forecast inputs of the run's model, cut as this value of fsdp.units says.
  const ForecastInputs& of_cut(const std::string& units);
  ForecastInputs inputs_of(const PlanInputs& inputs);

  const MeasuredRun* setup_;
  KnownRates known_;
  std::optional<DescribedMachine> machine_;
  bool here_ = true;                                // the target machine is the local one
  std::map<std::string, ForecastInputs> of_units_;  // by the units' name
  std::string checked_run_;                         // text_of_run of the last check
};

// Returns the plan that meets the goal of `longshore init` best, among the setup's plan and those
// that a search of this scope around it finds; empty if no plan fits. Nothing runs. `described` is
// the target machine; empty: the local one. Throws ConfigError for kFastest if the rates are
// unknown.
std::optional<PlanPoint> best_point(DraftGoal goal, const MeasuredRun& setup,
                                    const std::optional<DescribedMachine>& described,
                                    const SearchScope& scope);

// Returns the setup's sequence length, doubled while some plan of the scope fits, up to `most`.
int64_t longest_sequences(const MeasuredRun& setup, int64_t most, const SearchScope& scope);

}  // namespace longshore
