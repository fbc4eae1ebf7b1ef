// PlanForecast: the time of a run's plans, from what is known of the machine that they are for.
// Made once the units are settled; the setup must outlive it. Main thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "offload/forecast/forecast_text.h"
#include "offload/forecast/plan_check.h"
#include "trainer/setup/known_rates.h"
#include "trainer/setup/run_file_draft.h"

namespace longshore {

// The machine of that name (common_machines.h), or of a description's file. IoError; ConfigError
// where it is neither, or the description has mistakes.
DescribedMachine read_machine(const std::string& named);

class PlanForecast {
 public:
  // `described`: the machine, where it is not this one.
  explicit PlanForecast(const MeasuredRun* setup,
                        std::optional<DescribedMachine> described = std::nullopt);

  // Whether anything is known of the machine's rates.
  bool known() const { return machine_.has_value(); }
  StepForecast step(const PlanInputs& inputs, const TierPlan& plan);
  // Seconds of the operations of its train pass; empty where a rate is missing.
  std::vector<double> operations(const TierPlan& plan);
  PlanSearch search(const SearchScope& scope);
  // With what single changes would give, where that is asked.
  PlanScreen screen(const TierPlan& plan, bool changes);

  // What a run's first steps are compared with; nothing where no time was planned.
  std::optional<PlanCheck> check(const TierPlan& plan);
  // Keeps what they took for the next plan.
  void learn(const PlanCheck& check) const;

 private:
  // Of the run's model in units of that name.
  const ForecastInputs& of_cut(const std::string& units);
  ForecastInputs inputs_of(const PlanInputs& inputs);

  const MeasuredRun* setup_;
  KnownRates known_;
  std::optional<DescribedMachine> machine_;
  bool here_ = true;
  std::map<std::string, ForecastInputs> of_units_;  // by the units' name
  std::string checked_run_;  // what the last check compares, and by which measurements
};

// The plan of a draft that meets the goal of `longshore init` best, among the setup's and those
// that a search finds around it; nothing runs. `described`: the machine, where it is not this one.
// ConfigError where the fastest is wanted and the machine's rates are not known. Nothing where no
// plan fits.
std::optional<PlanPoint> best_point(DraftGoal goal, const MeasuredRun& setup,
                                    const std::optional<DescribedMachine>& described);

// The setup's sequence length, doubled for as long as some plan with it fits, up to `most`.
int64_t longest_sequences(const MeasuredRun& setup, int64_t most);

}  // namespace longshore
