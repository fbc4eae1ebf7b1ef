// StepForecast: how long a step takes, from the plan's own schedule with bytes and operations over
// a machine's rates. Values, pure functions, without a device.
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

// What a unit computes for one position, forward.
struct UnitFlops {
  double products = 0.0;   // operations of its matrices
  double attention = 0.0;  // with documents of the run's longest length
  double width = 0.0;      // of its products, on average
  // Measured on this machine at the run's shapes, at one or two sizes of micro-batches; or nothing.
  std::vector<UnitPoint> measured = {};
};

using LaneFactors = std::array<double, kLaneCount>;
inline constexpr LaneFactors kNoCorrection = {1, 1, 1, 1, 1, 1, 1, 1};

struct ForecastInputs {
  std::vector<UnitFlops> units;  // the model's
  int64_t tokens_per_step = 0;   // over all ranks, at most
  int32_t ranks_per_node = 1;
  double cores = 1.0;  // of one rank
  DType compute = DType::kF32;
  // By lane: what earlier runs of this model on this machine took of what was planned.
  LaneFactors corrections = kNoCorrection;
};

struct StepForecast {
  std::vector<std::string> unknown;           // rates that are missing; then all below is 0
  double seconds = 0.0;                       // of a step
  double tokens_per_second = 0.0;             // over all ranks
  std::array<double, kLaneCount> alone = {};  // seconds of the lane's work by itself
  std::array<double, kLaneCount> busy = {};   // the same as the step goes: with waits for cores
  Lane wall = Lane::kCompute;                 // has most to do
  Lane next = Lane::kCompute;                 // has most to do of the others
  double forward_seconds = 0.0;               // of a pass without gradients, all micro-batches

  bool known() const { return unknown.empty(); }
  double of(const std::array<double, kLaneCount>& seconds, Lane lane) const {
    return seconds[static_cast<size_t>(lane)];
  }
};

// `seconds` of every operation of one of the plan's schedules; names of missing rates go to
// `unknown`, once each.
std::vector<OpSeconds> operation_seconds(const StepSchedule& schedule, const TierPlan& plan,
                                         const ModelSpec& model, const ForecastInputs& inputs,
                                         const MachineRates& rates,
                                         std::vector<std::string>& unknown);

StepForecast forecast_step(const TierPlan& plan, const ModelSpec& model,
                           const ForecastInputs& inputs, const MachineRates& rates);

}  // namespace longshore
