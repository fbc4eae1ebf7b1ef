// StepForecast: the duration of a step, from the plan's own schedule and a machine's rates. Values
// and pure functions, without a device.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "offload/forecast/machine_rates.h"
#include "offload/forecast/unit_seconds.h"
#include "offload/plan/tier_plan.h"
#include "offload/schedule/schedule_simulation.h"

namespace longshore {

// The operations of a unit's forward for one position.
struct UnitFlops {
  double products = 0.0;   // of its matrices
  double attention = 0.0;  // with documents of the run's longest length
  double width = 0.0;      // average width of its products
  // Measured at the run's shapes on this machine, for one or two micro-batch sizes; may be empty.
  std::vector<UnitPoint> measured = {};
};

using LaneFactors = std::array<double, kLaneCount>;
inline constexpr LaneFactors kNoCorrection = {1, 1, 1, 1, 1, 1, 1, 1};

struct ForecastInputs {
  std::vector<UnitFlops> units;  // of the model
  int64_t tokens_per_step = 0;   // over all ranks, at most
  int32_t ranks_per_node = 1;
  double cores = 1.0;  // of one rank
  DType compute = DType::kF32;
  // By lane: measured over planned time in earlier runs of this model on this machine.
  LaneFactors corrections = kNoCorrection;
};

struct StepForecast {
  std::vector<std::string> unknown;           // missing rates; if any, all values below are 0
  double seconds = 0.0;                       // of a step
  double tokens_per_second = 0.0;             // over all ranks
  std::array<double, kLaneCount> alone = {};  // seconds of the lane's work alone
  std::array<double, kLaneCount> busy = {};   // in the step, with waits for cores
  Lane wall = Lane::kCompute;                 // the lane with the most work
  Lane next = Lane::kCompute;                 // the lane with the second most
  double forward_seconds = 0.0;               // of a pass without gradients, all micro-batches

  bool known() const { return unknown.empty(); }
  double of(const std::array<double, kLaneCount>& seconds, Lane lane) const {
    return seconds[static_cast<size_t>(lane)];
  }
};

// Returns the seconds of every operation of a schedule of the plan; `unknown` gets missing rates.
std::vector<OpSeconds> operation_seconds(const StepSchedule& schedule, const TierPlan& plan,
                                         const ModelSpec& model, const ForecastInputs& inputs,
                                         const MachineRates& rates,
                                         std::vector<std::string>& unknown);

StepForecast forecast_step(const TierPlan& plan, const ModelSpec& model,
                           const ForecastInputs& inputs, const MachineRates& rates);

}  // namespace longshore
