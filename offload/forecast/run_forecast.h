// RunForecast: time and energy of a run, from the forecast of its step. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/forecast/machine_file.h"
#include "offload/forecast/step_forecast.h"

namespace longshore {

// The run file's settings of the run beside its steps.
struct RunLength {
  int64_t steps = 0;             // 0: unknown until the data is prepared
  int64_t checkpoint_steps = 0;  // between checkpoints; 0: only at the end
  bool evaluates = false;
  int64_t evaluation_steps = 0;      // between evaluations; 0: only at the end
  int64_t evaluation_sequences = 0;  // of one; 0: unknown until the data is prepared
  int64_t sequences_per_step = 1;
  Bytes weight_bytes = 0;  // of the model's files; 0: random weights
};

struct RunForecast {
  StepForecast step;
  // Seconds; empty if a rate is missing.
  std::optional<double> read_model = {}, pin_memory = {};  // before the first step
  std::optional<double> checkpoint = {};                   // one checkpoint
  std::optional<double> evaluation = {};                   // one evaluation
  std::optional<double> run = {};                          // the whole run
  int64_t checkpoints = 0, evaluations = 0;
  std::optional<double> watt_hours = {};  // of the run; empty if time or power is unknown

  std::optional<double> first_step() const;  // seconds until it begins
};

RunForecast forecast_run(const StepForecast& step, const TierPlan& plan, const RunLength& length,
                         const MachineRates& rates, double watts, int32_t ranks_per_node);

}  // namespace longshore
