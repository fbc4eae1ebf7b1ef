// RunForecast: how long a whole run takes and the energy it needs, from the forecast of its step.
// Values, pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/forecast/machine_file.h"
#include "offload/forecast/step_forecast.h"

namespace longshore {

// What the run file says of the run beside its steps.
struct RunLength {
  int64_t steps = 0;             // 0: not known before the data is prepared
  int64_t checkpoint_steps = 0;  // between checkpoints; 0: at the end alone
  bool evaluates = false;
  int64_t evaluation_steps = 0;      // between evaluations; 0: at the end alone
  int64_t evaluation_sequences = 0;  // of each; 0: not known before the data is prepared
  int64_t sequences_per_step = 1;
  Bytes weight_bytes = 0;  // of the model's files; 0: random weights
};

struct RunForecast {
  StepForecast step;
  // Seconds; nothing where a rate is missing.
  std::optional<double> read_model = {}, pin_memory = {};  // before the first step
  std::optional<double> checkpoint = {};                   // one
  std::optional<double> evaluation = {};                   // one
  std::optional<double> run = {};                          // all of it
  int64_t checkpoints = 0, evaluations = 0;
  std::optional<double> watt_hours = {};  // of the run, where its time and the power are known

  std::optional<double> first_step() const;  // seconds until it begins
};

RunForecast forecast_run(const StepForecast& step, const TierPlan& plan, const RunLength& length,
                         const MachineRates& rates, double watts, int32_t ranks_per_node);

}  // namespace longshore
