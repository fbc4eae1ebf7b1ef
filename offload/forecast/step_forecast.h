// Forecasts the duration of a unit from its measurements, of a step from the plan's own schedule
// and a machine's rates, and the time and energy of a run. Values and pure functions, without a
// device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/forecast/machine_rates.h"
#include "offload/plan/tier_plan.h"
#include "offload/schedule/schedule_simulation.h"

namespace longshore {

// unit_seconds: a unit's compute time, from measurements at one or two micro-batch sizes. Two show
// how much less larger ones take per position. Pure functions.

// Seconds per position. Backward includes the recomputed forward.
struct UnitSeconds {
  double forward = 0.0, backward = 0.0;
  bool operator==(const UnitSeconds&) const = default;
};

struct UnitPoint {
  int64_t positions = 0;  // of the measured micro-batch; 0: not recorded
  UnitSeconds seconds;
  bool operator==(const UnitPoint&) const = default;
};

// `points` are one, used for all micro-batches, or two in ascending order of positions. A
// micro-batch takes the time on the line through both. If noise makes the line start below 0 or
// fall, it applies only between the points; beyond, the time per position is that of the nearest
// point.
UnitSeconds unit_seconds(const std::vector<UnitPoint>& points, int64_t positions);

// StepForecast: the duration of a step, from the plan's own schedule and a machine's rates. Values
// and pure functions, without a device.

// The operations of a unit's forward for one position, and the elements that its adapters read and
// write. Products with an adapter's few rows or columns are bound by memory, not by operations.
struct UnitFlops {
  double products = 0.0;   // of its matrices
  double attention = 0.0;  // with documents of the run's longest length
  double width = 0.0;      // average width of its products
  double trained = 1.0;    // share of the products' matrix elements that have a gradient
  double adapter_inputs = 0.0, adapter_outputs = 0.0;  // sums of the adapted matrices' widths
  // Measured at the run's shapes on this machine, for one or two micro-batch sizes; may be empty.
  std::vector<UnitPoint> measured = {};
};

// Returns the elements that products with adapters read and write for one position; the few
// elements of the products with A are left out. Forward reads x for A, and reads and writes the
// output to add B's product. Backward reads the output's gradient twice (for A's and B's
// gradients), x twice (the product with A again, and A's gradient), and reads and writes the
// gradient of x.
double adapter_elements(const UnitFlops& unit, bool backward);

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

// Returns the rate of copies between a GPU and host memory that is not registered with it, from the
// link's and that of one thread that copies in memory: the thread fills one buffer while the link
// copies another. Pageable memory, without buffers, is an estimate: the driver does one after the
// other. 0 if a rate is unknown.
double unregistered_rate(double link, double copy, const PinnedPlan& pinned);

StepForecast forecast_step(const TierPlan& plan, const ModelSpec& model,
                           const ForecastInputs& inputs, const MachineRates& rates);

// RunForecast: time and energy of a run, from the forecast of its step. Pure functions.

// The lengths and intervals of a run, from its run file.
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

// PlanCheck: compares a run's first steps with their forecast: the error, the lane whose rate has
// the largest error, and the corrections for the next plan of such a run. Owned by the run's first
// rank; one thread.

class PlanCheck {
 public:
  // `used` are the corrections in the forecast.
  PlanCheck(StepForecast planned, LaneFactors used);

  // Adds a step's seconds and each lane's busy seconds; ignores the first step, which allocates.
  void add(double seconds, const std::array<double, kLaneCount>& busy);
  bool complete() const;

  // Returns the median over the added steps.
  double measured_seconds() const;
  // Returns the lane whose busy time differs most from the plan.
  Lane blamed() const;
  // Returns corrections by lane: measured time over the time that follows from the rates. Idle
  // lanes keep their correction.
  LaneFactors factors() const;
  // Returns "planned 12.4 s a step, measured 13.1 s (6 % more); largest error: the compute lane,
  // ...".
  std::string text() const;

 private:
  double measured(size_t lane) const;

  StepForecast planned_;
  LaneFactors used_;
  int steps_ = 0;
  std::vector<double> seconds_;
  std::array<std::vector<double>, kLaneCount> busy_;
};

}  // namespace longshore
