#include "offload/forecast/step_forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "offload/forecast/forecast_text.h"
#include "shard/input_tier.h"

namespace longshore {
namespace {

struct Point {
  double positions = 0.0;
  double seconds = 0.0;  // per position
};

double seconds_at(const Point& low, const Point& high, double positions) {
  const double least = low.positions * low.seconds, most = high.positions * high.seconds;
  const double slope = (most - least) / (high.positions - low.positions);
  const double start = least - slope * low.positions;
  const bool sound = start >= 0.0 && slope > 0.0;
  const double at = sound ? positions : std::clamp(positions, low.positions, high.positions);
  return start / at + slope;
}

// Multiples of forward's operations: products repeat for gradients of inputs and of weights;
// attention's backward has five products where forward has two.
constexpr double kInputGradients = 1.0, kWeightGradients = 1.0;
constexpr double kAttentionBackward = 2.5;
constexpr double kFlopsOfElement = 2.0;  // of a matrix, for one position
// On the CPU device copies, drives and collectives use one thread each.
constexpr double kMovingThreads = 1.0;

double over(double work, double rate) {
  return rate > 0.0 ? work / rate : 0.0;
}

OpSeconds only_works(double seconds) {
  return {.works = seconds};
}

// Returns the positions of the first rank, which has the most: every micro-batch whose number is a
// multiple of the ranks. The step's last micro-batch may be short.
double most_positions(const TierPlan& plan, int64_t tokens) {
  const int64_t whole = plan.step.positions;
  const int64_t last = (tokens - 1) / whole;  // the last micro-batch's number
  const bool first_has_it = last % plan.topology.ranks == 0;
  const int64_t mine = last / plan.topology.ranks + 1;
  const int64_t missing = first_has_it ? (last + 1) * whole - tokens : 0;
  return static_cast<double>(mine * whole - missing);
}

// Computes the seconds of each operation.
class OperationTimes {
 public:
  OperationTimes(const TierPlan& plan, const ModelSpec& model, const ForecastInputs& inputs,
                 const MachineRates& rates, std::vector<std::string>& unknown)
      : plan_(plan),
        model_(model),
        runs_(model, plan.step.kept_results),
        inputs_(inputs),
        rates_(rates),
        unknown_(unknown) {
    LONGSHORE_CHECK(inputs.units.size() == model.units.size()) << inputs.units.size();
    positions_ = most_positions(plan, inputs.tokens_per_step);
  }

  OpSeconds seconds(const Op& op) {
    const double correction = inputs_.corrections[static_cast<size_t>(lane_of(op.kind))];
    const OpSeconds seconds = plain_seconds(op);
    return {seconds.waits * correction, seconds.moves * correction, seconds.works * correction};
  }

 private:
  OpSeconds plain_seconds(const Op& op) {
    const auto bytes = static_cast<double>(op.bytes);
    switch (op.kind) {
      case OpKind::kForward:
      case OpKind::kBackward:
        return only_works(compute_seconds(op));
      case OpKind::kUpdate:
        return only_works(update_seconds(bytes));
      case OpKind::kFetch:
      case OpKind::kLoadInput:
        return only_works(over(bytes, link(true, registered(op.kind))));
      case OpKind::kDrain:
      case OpKind::kSaveInput:
        return only_works(over(bytes, link(false, registered(op.kind))));
      case OpKind::kGather:
        return gather_seconds(bytes);
      case OpKind::kReduce:
        return reduce_seconds(bytes);
      case OpKind::kReadParameters:
        if (plan_.frozen_in_files) return file_seconds(bytes);
        return drive_seconds(bytes, kReads);
      case OpKind::kReadState:
      case OpKind::kReadInput:
        return drive_seconds(bytes, kReads);
      case OpKind::kWriteState:
      case OpKind::kWriteInput:
      case OpKind::kCommit:
        return drive_seconds(bytes, kWrites);
    }
    return {};
  }

  double known(double rate, const std::string& name) {
    if (rate > 0.0) return rate;
    if (std::ranges::find(unknown_, name) == unknown_.end()) unknown_.push_back(name);
    return 0.0;
  }

  // Whether the GPU's link reaches the host memory of the operation without a copy in between.
  bool registered(OpKind kind) const {
    const PinnedPlan& pinned = plan_.host.pinned;
    if (kind == OpKind::kFetch) return pinned.state;
    return kind == OpKind::kDrain ? pinned.gradients : pinned.inputs;
  }

  double link(bool to_device, bool registered) {
    if (plan_.device.kind == DeviceKind::kCpu) return known(rates_.copy, "copies in memory");
    const LinkRates& rates = rates_.link;
    const double alone = to_device ? rates.to_device : rates.to_host;
    const double both = to_device ? rates.to_device_both : rates.to_host_both;
    const double rate =
        known(both > 0.0 ? both : alone, to_device ? "copies to the device" : "copies to the host");
    if (registered) return rate;
    return unregistered_rate(rate, known(rates_.copy, "copies in memory"), plan_.host.pinned);
  }

  double update_seconds(double bytes) {
    if (bytes == 0.0) return 0.0;  // no trainable parameter
    const std::string format(name_of(plan_.state.format));
    return over(bytes, known(rates_.update_bytes(plan_.state.format, plan_.optimizer_threads,
                                                 inputs_.ranks_per_node),
                             "the update of " + format));
  }

  OpSeconds group_seconds(double bytes, int32_t ranks, CollectiveRate GroupRates::* collective) {
    const GroupRates* found = rates_.group(plan_.device.kind, ranks);
    const CollectiveRate rate = found == nullptr ? CollectiveRate{} : found->*collective;
    const std::string name = "collectives of " + std::to_string(ranks) + " ranks";
    if (bytes == 0.0 || known(rate.bytes, name) == 0.0) return {};
    const double seconds = bytes / rate.bytes;
    // On a GPU kernels move the payload, so no core of the host is busy.
    const double share = plan_.device.kind == DeviceKind::kCpu ? rate.core_share : 0.0;
    const double starts = std::min(rate.start_core_seconds, rate.start_seconds);
    return {.waits = rate.start_seconds - starts,
            .moves = (1.0 - share) * seconds,
            .works = starts + share * seconds};
  }

  OpSeconds gather_seconds(double bytes) {
    return group_seconds(bytes, plan_.topology.shard_ranks, &GroupRates::gather);
  }

  OpSeconds reduce_seconds(double bytes) {
    const ShardTopology& topology = plan_.topology;
    OpSeconds scatter, replicas;
    if (topology.shard_ranks > 1) {
      scatter = group_seconds(bytes, topology.shard_ranks, &GroupRates::reduce_scatter);
    }
    if (topology.replicas() > 1) {
      replicas =
          group_seconds(bytes / topology.shard_ranks, topology.replicas(), &GroupRates::all_reduce);
    }
    // Payload between groups uses another link than payload inside a group.
    if (topology.shard_ranks > 1) replicas.waits += std::exchange(replicas.moves, 0.0);
    return {scatter.waits + replicas.waits, scatter.moves + replicas.moves,
            scatter.works + replicas.works};
  }

  // The rates of one direction of a drive.
  struct DriveWay {
    double DriveRates::* both;
    double DriveRates::* alone;
    double DriveRates::* core_share;
  };
  static constexpr DriveWay kReads{&DriveRates::read_both, &DriveRates::read,
                                   &DriveRates::read_core_share};
  static constexpr DriveWay kWrites{&DriveRates::written_both, &DriveRates::written,
                                    &DriveRates::written_core_share};

  // All drives of the node serve all of its ranks; stripes follow probed speeds, else the slowest
  // limits.
  OpSeconds drive_seconds(double bytes, const DriveWay& way) {
    const std::vector<std::string>& directories = plan_.drives.tier.directories;
    const auto count = static_cast<double>(directories.size());
    double sum = 0.0, least = 0.0, core = 0.0;
    for (const std::string& directory : directories) {
      const DriveRates* drive = rates_.drive(directory);
      double rate = 0.0;
      if (drive != nullptr) rate = drive->*way.both > 0.0 ? drive->*way.both : drive->*way.alone;
      if (known(rate, "the drive of " + directory) == 0.0) return {};
      sum += rate;
      least = least == 0.0 ? rate : std::min(least, rate);
      core += over(bytes / count, drive->*way.alone) * drive->*way.core_share;
    }
    const bool equal = plan_.drives.tier.geometry.weights[0] == 0;
    const double seconds = over(bytes * inputs_.ranks_per_node, equal ? least * count : sum);
    core = std::min(core, seconds);
    return {.waits = seconds - core, .works = core};
  }

  // All ranks of the node read the model's files from one drive. Reads keep no core busy except for
  // the copy to the slot, which is counted as part of the read.
  OpSeconds file_seconds(double bytes) {
    if (bytes == 0.0) return {};
    const double rate = known(rates_.files_read, "reading the model's files");
    return {.waits = over(bytes * inputs_.ranks_per_node, rate)};
  }

  double compute_seconds(const Op& op) {
    const auto index = static_cast<size_t>(op.unit.value);
    const UnitFlops& unit = inputs_.units[index];
    const bool last = index + 1 == model_.units.size();
    const auto before_loss = static_cast<int64_t>(model_.units.size()) - 1;
    const bool kept = before_loss - op.unit.value <= plan_.step.kept_graphs;
    const bool backward = op.kind == OpKind::kBackward;
    const bool repeats = backward && (last || !kept);
    const bool attends = repeats && !keeps_results(op.unit);
    const double more = backward && last && plan_.step.loss.scores_first ? 1.0 : 0.0;  // forwards
    if (!unit.measured.empty()) {
      const UnitSeconds seconds = unit_seconds(unit.measured, plan_.step.positions);
      if (!backward) return positions_ * seconds.forward;
      double spared = repeats ? 0.0 : seconds.forward;
      if (repeats && !attends) {
        spared = std::min(attention_seconds(unit), seconds.forward);
        spared += spared_products(op.unit, unit) * (seconds.forward - spared);
      }
      return positions_ * (seconds.backward - spared + more * seconds.forward);
    }
    double products = 1.0, attention = 1.0, adapters = adapter_elements(unit, backward);
    if (backward) {
      const double again = repeats ? 1.0 - (attends ? 0.0 : spared_products(op.unit, unit)) : 0.0;
      products = kInputGradients + kWeightGradients * unit.trained + again + more;
      attention = kAttentionBackward + (attends ? 1.0 : 0.0) + more;
      adapters += repeats ? adapter_elements(unit, false) : 0.0;
    }
    return positions_ *
           (products * over(unit.products, product_rate(unit)) +
            attention * over(unit.attention, attention_rate(unit)) +
            over(adapters * static_cast<double>(width_of(inputs_.compute)), adapter_rate()));
  }

  // Returns whether backward of the unit finds results of its forward.
  bool keeps_results(UnitId unit) const {
    const SharedInputGroup* const run = runs_.of(unit);
    return run != nullptr && run->keeps_results() && !model_.unit(unit).results.empty();
  }

  // Returns the share of the unit's products in forward whose results backward finds.
  double spared_products(UnitId id, const UnitFlops& work) const {
    const UnitSpec& unit = model_.unit(id);
    if (work.products == 0.0) return 0.0;
    const int64_t hidden = unit.carry_out.front().elements_per_position;
    int64_t mixed = hidden;  // the width of the mixer's last product
    double elements = 0.0;   // of the matrices
    for (const CarryTensorSpec& result : unit.results) {
      if (!runs_.of(id)->keeps(result)) continue;
      if (result.kept_from == KeptResults::kAttention) {
        if (!result.wide) mixed = result.elements_per_position;
        continue;
      }
      const bool middle = result.kept_from == KeptResults::kMiddle;
      elements += static_cast<double>(result.elements_per_position * (middle ? mixed : hidden));
    }
    return std::min(1.0, kFlopsOfElement * elements / work.products);
  }

  // Returns the time of a position's attention in forward by the machine's rates, 0 without them.
  double attention_seconds(const UnitFlops& unit) const {
    const ComputeRates* rates = rates_.of(plan_.device.kind, inputs_.compute);
    return rates == nullptr ? 0.0 : over(unit.attention, threads_share() * rates->attention);
  }

  // 0, which counts as no time, in descriptions of machines without this rate.
  double adapter_rate() const {
    const ComputeRates* rates = rates_.of(plan_.device.kind, inputs_.compute);
    return rates == nullptr ? 0.0 : threads_share() * rates->adapters;
  }

  double product_rate(const UnitFlops& unit) {
    if (unit.products == 0.0) return 0.0;
    const ComputeRates* rates = rates_.of(plan_.device.kind, inputs_.compute);
    return threads_share() *
           known(rates == nullptr ? 0.0 : product_flops(*rates, unit.width), compute_name());
  }
  double attention_rate(const UnitFlops& unit) {
    if (unit.attention == 0.0) return 0.0;
    const ComputeRates* rates = rates_.of(plan_.device.kind, inputs_.compute);
    return threads_share() * known(rates == nullptr ? 0.0 : rates->attention, compute_name());
  }
  // The CPU's rates are for all cores of the machine.
  double threads_share() const {
    if (plan_.device.kind != DeviceKind::kCpu) return 1.0;
    return std::min(1.0, plan_.compute_threads / (inputs_.cores * inputs_.ranks_per_node));
  }
  std::string compute_name() const {
    return "computation in " + std::string(inputs_.compute == DType::kBF16 ? "bf16" : "fp32") +
           " on the " + (plan_.device.kind == DeviceKind::kCpu ? "CPU" : "GPU");
  }

  const TierPlan& plan_;
  const ModelSpec& model_;
  SharedInputGroups runs_;
  const ForecastInputs& inputs_;
  const MachineRates& rates_;
  std::vector<std::string>& unknown_;
  double positions_ = 0.0;
};

// Returns the number of cores that each lane's work takes, at most all of them: rates are those of
// all cores, and the second thread of a core makes no lane slower. The threads of a GPU's lanes
// only wait for the GPU.
LaneThreads lane_threads(const TierPlan& plan, double cores) {
  LaneThreads threads = {};
  const auto set = [&](Lane lane, double count) {
    threads[static_cast<size_t>(lane)] = std::min(count, cores);
  };
  set(Lane::kUpdate, plan.optimizer_threads);
  if (plan.device.kind != DeviceKind::kCpu) return threads;
  set(Lane::kCompute, plan.compute_threads);
  for (const Lane lane :
       {Lane::kRead, Lane::kH2D, Lane::kGather, Lane::kReduce, Lane::kD2H, Lane::kWrite}) {
    set(lane, kMovingThreads);
  }
  return threads;
}

void name_walls(StepForecast& forecast) {
  size_t most = 0;
  for (size_t lane = 1; lane < kLaneCount; ++lane) {
    if (forecast.alone[lane] > forecast.alone[most]) most = lane;
  }
  size_t next = most == 0 ? 1 : 0;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    if (lane != most && forecast.alone[lane] > forecast.alone[next]) next = lane;
  }
  forecast.wall = static_cast<Lane>(most);
  forecast.next = static_cast<Lane>(next);
}

constexpr double kSecondsOfHour = 3600.0;

std::optional<double> quotient(double bytes, double rate) {
  if (bytes == 0.0) return 0.0;
  return rate > 0.0 ? std::optional(bytes / rate) : std::nullopt;
}

// Counts an event at the end and after every `every` steps before it.
int64_t times_in(int64_t steps, int64_t every) {
  return every > 0 ? (steps - 1) / every + 1 : 1;
}

}  // namespace

double adapter_elements(const UnitFlops& unit, bool backward) {
  return backward ? 4.0 * unit.adapter_inputs + 2.0 * unit.adapter_outputs
                  : unit.adapter_inputs + 2.0 * unit.adapter_outputs;
}

UnitSeconds unit_seconds(const std::vector<UnitPoint>& points, int64_t positions) {
  LONGSHORE_CHECK(!points.empty() && positions > 0) << points.size() << " " << positions;
  const UnitPoint &low = points.front(), &high = points.back();
  if (low.positions == high.positions) return low.seconds;
  const auto at = [&](double UnitSeconds::* pass) {
    return seconds_at({static_cast<double>(low.positions), low.seconds.*pass},
                      {static_cast<double>(high.positions), high.seconds.*pass},
                      static_cast<double>(positions));
  };
  return {at(&UnitSeconds::forward), at(&UnitSeconds::backward)};
}

std::vector<OpSeconds> operation_seconds(const StepSchedule& schedule, const TierPlan& plan,
                                         const ModelSpec& model, const ForecastInputs& inputs,
                                         const MachineRates& rates,
                                         std::vector<std::string>& unknown) {
  OperationTimes times(plan, model, inputs, rates, unknown);
  std::vector<OpSeconds> seconds;
  for (const Op& op : schedule.ops) seconds.push_back(times.seconds(op));
  return seconds;
}

StepForecast forecast_step(const TierPlan& plan, const ModelSpec& model,
                           const ForecastInputs& inputs, const MachineRates& rates) {
  StepForecast forecast;
  const double cores = std::max({inputs.cores, 1.0});
  const LaneThreads threads = lane_threads(plan, cores);
  const auto pass = [&](const StepSchedule& schedule, bool of_step) {
    const std::vector<OpSeconds> seconds =
        operation_seconds(schedule, plan, model, inputs, rates, forecast.unknown);
    if (!forecast.known()) return 0.0;
    const SimulatedPass simulated = simulate_schedule(schedule, seconds, threads, cores);
    for (size_t i = 0; of_step && i < seconds.size(); ++i) {
      forecast.alone[static_cast<size_t>(lane_of(schedule.ops[i].kind))] += seconds[i].all();
    }
    for (size_t lane = 0; of_step && lane < kLaneCount; ++lane) {
      forecast.busy[lane] += simulated.busy[lane];
    }
    return simulated.seconds;
  };
  double seconds = 0.0;
  for (const StepSchedule* schedule : plan.step.passes()) seconds += pass(*schedule, true);
  const double forward = pass(plan.step.schedules.forward, false);
  if (!forecast.known()) return {.unknown = forecast.unknown};
  forecast.seconds = seconds;
  forecast.forward_seconds = forward;
  forecast.tokens_per_second = over(static_cast<double>(inputs.tokens_per_step), seconds);
  name_walls(forecast);
  return forecast;
}

std::optional<double> RunForecast::first_step() const {
  if (!read_model || !pin_memory) return std::nullopt;
  return *read_model + *pin_memory;
}

RunForecast forecast_run(const StepForecast& step, const TierPlan& plan, const RunLength& length,
                         const MachineRates& rates, double watts, int32_t ranks_per_node) {
  RunForecast forecast;
  forecast.step = step;
  forecast.read_model = quotient(static_cast<double>(length.weight_bytes), rates.files_read);
  const double pinned =
      static_cast<double>(plan.host.arena + plan.host.gradients + plan.host.inputs) *
      ranks_per_node;
  forecast.pin_memory = quotient(pinned, rates.pin);
  forecast.checkpoint = quotient(static_cast<double>(plan.checkpoint_bytes), rates.files_written);
  if (!step.known() || length.steps == 0) return forecast;
  forecast.checkpoints = times_in(length.steps, length.checkpoint_steps);
  double seconds = step.seconds * static_cast<double>(length.steps);
  if (length.evaluates) {
    forecast.evaluations = times_in(length.steps, length.evaluation_steps);
    if (length.evaluation_sequences > 0) {
      forecast.evaluation = step.forward_seconds * (plan.step.loss.forward_first ? 2.0 : 1.0) *
                            static_cast<double>(length.evaluation_sequences) /
                            static_cast<double>(length.sequences_per_step);
    }
    seconds += forecast.evaluation.value_or(0.0) * static_cast<double>(forecast.evaluations);
  }
  seconds += forecast.checkpoint.value_or(0.0) * static_cast<double>(forecast.checkpoints);
  seconds += forecast.first_step().value_or(0.0);
  forecast.run = seconds;
  if (watts > 0.0) forecast.watt_hours = watts * seconds / kSecondsOfHour;
  return forecast;
}

namespace {

constexpr size_t kSteps = 4;
// Lanes with a smaller share of a step are noise.
constexpr double kLeastShare = 0.01;
// Rates that are measured while other programs run may be wrong by a factor of ten; corrections are
// clamped to this.
constexpr double kMostFactor = 1000.0;

}  // namespace

PlanCheck::PlanCheck(StepForecast planned, LaneFactors used)
    : planned_(std::move(planned)), used_(used) {
  LONGSHORE_CHECK(planned_.known() && planned_.seconds > 0.0) << "nothing was planned";
}

void PlanCheck::add(double seconds, const std::array<double, kLaneCount>& busy) {
  if (steps_++ == 0 || complete()) return;
  seconds_.push_back(seconds);
  for (size_t lane = 0; lane < kLaneCount; ++lane) busy_[lane].push_back(busy[lane]);
}

bool PlanCheck::complete() const {
  return seconds_.size() == kSteps;
}

double PlanCheck::measured_seconds() const {
  return median_of(seconds_);
}

double PlanCheck::measured(size_t lane) const {
  return median_of(busy_[lane]);
}

Lane PlanCheck::blamed() const {
  size_t most = 0;
  const auto off = [this](size_t lane) { return std::abs(measured(lane) - planned_.busy[lane]); };
  for (size_t lane = 1; lane < kLaneCount; ++lane) {
    if (off(lane) > off(most)) most = lane;
  }
  return static_cast<Lane>(most);
}

LaneFactors PlanCheck::factors() const {
  LaneFactors factors = used_;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    const double planned = planned_.busy[lane];
    if (planned < kLeastShare * planned_.seconds || measured(lane) <= 0.0) continue;
    factors[lane] =
        std::clamp(used_[lane] * measured(lane) / planned, 1.0 / kMostFactor, kMostFactor);
  }
  return factors;
}

std::string PlanCheck::text() const {
  const double share = measured_seconds() / planned_.seconds - 1.0;
  const std::string percent =
      formatted("%.0f %% %s", 100.0 * std::abs(share), share < 0.0 ? "less" : "more");
  const auto lane = static_cast<size_t>(blamed());
  return "planned " + rounded_seconds(planned_.seconds) + " a step, measured " +
         rounded_seconds(measured_seconds()) + " (" + percent + "); largest error: the " +
         std::string(name_of(blamed())) + " lane, busy " + rounded_seconds(measured(lane)) +
         " where " + rounded_seconds(planned_.busy[lane]) + " were planned";
}

double unregistered_rate(double link, double copy, const PinnedPlan& pinned) {
  if (link <= 0.0 || copy <= 0.0) return 0.0;
  return pinned.copy_buffers > 0 ? std::min(link, copy) : 1.0 / (1.0 / link + 1.0 / copy);
}

}  // namespace longshore
