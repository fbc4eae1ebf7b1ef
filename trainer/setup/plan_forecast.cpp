#include "trainer/setup/plan_forecast.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"
#include "offload/forecast/decode_forecast.h"
#include "trainer/data/run_data.h"
#include "trainer/setup/run_flops.h"

namespace longshore {
namespace {

constexpr Bytes kMostMachineBytes = kMiB;
constexpr std::array kNamedUnits = {UnitsChoice::Kind::kBlock, UnitsChoice::Kind::kHalf,
                                    UnitsChoice::Kind::kPiece};

// Returns the forward seconds per position of all measured units: by the machine's rates, and as
// measured in micro-batches of `positions`.
std::pair<double, double> computation(const ForecastInputs& inputs, const ComputeRates& rates,
                                      int64_t positions) {
  double planned = 0.0, measured = 0.0;
  for (const UnitFlops& unit : inputs.units) {
    if (unit.measured.empty() || unit.products == 0.0) continue;
    planned += unit.products / product_flops(rates, unit.width);
    measured += unit_seconds(unit.measured, positions).forward;
  }
  return {planned, measured};
}

RunLength length_of(const MeasuredRun& setup, const TierPlan& plan) {
  const RunConfig& config = setup.config;
  RunLength length;
  length.steps = config.train.steps;
  length.checkpoint_steps = config.checkpoint.every_steps;
  length.evaluates = has_evaluation_data(config);
  length.evaluation_steps = config.eval.every_steps;
  length.evaluation_sequences = config.eval.sequences;
  length.sequences_per_step = config.train.sequences_per_step;
  if (!setup.source->base().random()) {
    // The resident part of a frozen model in its files is read once, the rest in every step.
    length.weight_bytes = (plan.frozen_in_files ? plan.trainable : plan.parameters) *
                              width_of(setup.source->arch().dtype.value_or(DType::kBF16)) +
                          plan.host.resident;
  }
  return length;
}

// Returns an empty forecast, so that a search compares plans by bytes alone.
StepForecast no_time(const PlanInputs&, const TierPlan&) {
  return {};
}

Bytes memory_of(const PlanPoint& point) {
  return point.device + point.host;
}

// Returns whether the smallest plan fits with any choice of tiers and units.
bool fits_somehow(PlanInputs inputs, const Machine& machine, const SearchScope& scope) {
  inputs.micro_batch = 1;
  inputs.prefetch = 0;
  inputs.recompute = true;
  inputs.keep_what_fits = false;
  inputs.keep_results = KeptResults::kNone;
  std::vector<SearchAxis> axes = search_axes(inputs, scope);
  // Micro-batch and speed keys cannot make a plan fit, so only tiers and units vary.
  std::erase_if(axes, [](const SearchAxis& axis) {
    return axis.size() < 2 || (axis[1].key != "fsdp.units" && !axis[1].key.starts_with("offload."));
  });
  PlanSearch search(std::move(inputs), machine, axes, no_time);
  std::vector<size_t> choice(axes.size(), 0);
  while (true) {
    if (search.at(choice) != nullptr) return true;
    size_t axis = 0;
    while (axis < axes.size() && ++choice[axis] == axes[axis].size()) choice[axis++] = 0;
    if (axis == axes.size()) return false;
  }
}

}  // namespace

DescribedMachine read_machine(const std::string& named, const MachineChanges& changes) {
  std::error_code ignored;
  const std::filesystem::path path(named);
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored)) {
    DescribedMachine described = parse_machine(read_input(named, kMostMachineBytes), named);
    change_machine(described, changes);
    return described;
  }
  if (std::optional<DescribedMachine> known = common_machine(named, changes)) return *known;
  const std::string nearest = nearest_machine(named);
  throw ConfigError("--machine " + named + ": neither a file nor a known machine" +
                    (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                    "\nknown machines: " + joined(common_machine_names(), ", "));
}

PlanForecast::PlanForecast(const MeasuredRun* setup, std::optional<DescribedMachine> described)
    : setup_(setup), known_(known_rates(*setup)), machine_(std::move(described)) {
  here_ = !machine_;
  if (here_) machine_ = known_.find();
}

const ForecastInputs& PlanForecast::of_cut(const std::string& units) {
  const auto known = of_units_.find(units);
  if (known != of_units_.end()) return known->second;
  const KnownRates* measured = here_ ? &known_ : nullptr;
  ForecastInputs inputs;
  if (units == setup_->inputs.units) {
    inputs = forecast_inputs(*setup_, setup_->source->model(), measured);
  } else {
    for (const UnitsChoice::Kind kind : kNamedUnits) {
      if (units != '"' + std::string(name_of(kind)) + '"') continue;
      UnitsChoice choice;
      choice.kind = kind;
      inputs = forecast_inputs(*setup_, *setup_->source->in_units(choice), measured);
    }
  }
  return of_units_.emplace(units, std::move(inputs)).first->second;
}

// Corrects the compute rate of other units by the ratio of measured to planned unit times.
ForecastInputs PlanForecast::inputs_of(const PlanInputs& inputs) {
  ForecastInputs found = of_cut(inputs.units);
  if (inputs.units == setup_->inputs.units || !machine_) return found;
  const ComputeRates* rates = machine_->rates.of(setup_->inputs.device, found.compute);
  if (rates == nullptr) return found;
  const auto [planned, taken] = computation(of_cut(setup_->inputs.units), *rates,
                                            inputs.micro_batch * inputs.sequence_tokens());
  if (planned > 0.0) found.corrections[static_cast<size_t>(Lane::kCompute)] *= taken / planned;
  return found;
}

bool PlanForecast::tells_micro_batches_apart() {
  if (!machine_ || !here_ || setup_->elsewhere) return false;
  return std::ranges::all_of(of_cut(setup_->inputs.units).units, [](const UnitFlops& unit) {
    return unit.products == 0.0 || unit.measured.size() > 1;
  });
}

StepForecast PlanForecast::step(const PlanInputs& inputs, const TierPlan& plan) {
  if (!machine_) return {.unknown = {"everything"}};
  return forecast_step(plan, *inputs.model, inputs_of(inputs), machine_->rates);
}

std::optional<double> PlanForecast::decoded_per_second(const TierPlan& plan) {
  if (!machine_) return std::nullopt;
  return decoding_tokens_per_second(plan, *setup_->inputs.model, of_cut(setup_->inputs.units),
                                    machine_->rates);
}

std::vector<double> PlanForecast::operations(const TierPlan& plan) {
  if (!machine_) return {};
  std::vector<std::string> unknown;
  const std::vector<OpSeconds> seconds =
      operation_seconds(plan.step.schedules.train, plan, *setup_->inputs.model,
                        inputs_of(setup_->inputs), machine_->rates, unknown);
  return unknown.empty() ? all_of(seconds) : std::vector<double>();
}

PlanSearch PlanForecast::search(const SearchScope& scope) {
  PlanInputs inputs = setup_->inputs;
  if (inputs.nvme.directories.empty() && !scope.drive.empty()) {
    inputs.nvme.directories = {scope.drive};
  }
  std::vector<SearchAxis> axes = search_axes(inputs, scope);
  return {std::move(inputs), setup_->machine, std::move(axes),
          [this](const PlanInputs& inputs, const TierPlan& plan) { return step(inputs, plan); }};
}

PlanScreen PlanForecast::screen(const TierPlan& plan, bool changes) {
  PlanScreen screen;
  screen.sequences_per_step = setup_->config.train.sequences_per_step;
  if (!machine_) return screen;
  screen.source = machine_->rates.source;
  screen.decoded_per_second = decoded_per_second(plan);
  screen.forecast = forecast_run(step(setup_->inputs, plan), plan, length_of(*setup_, plan),
                                 machine_->rates, machine_->watts, setup_->inputs.ranks_per_node);
  if (changes && screen.forecast.step.known()) screen.points = search({}).one_change();
  return screen;
}

std::optional<PlanCheck> PlanForecast::check(const TierPlan& plan) {
  StepForecast planned = step(setup_->inputs, plan);
  if (!planned.known() || planned.seconds <= 0.0) return std::nullopt;
  checked_run_ = text_of_run(*setup_, known_);
  return PlanCheck(std::move(planned), inputs_of(setup_->inputs).corrections);
}

void PlanForecast::learn(const PlanCheck& check) const {
  known_.keep_factors(checked_run_, check.factors());
}

std::optional<PlanPoint> best_point(DraftGoal goal, const MeasuredRun& setup,
                                    const std::optional<DescribedMachine>& described,
                                    const SearchScope& scope) {
  PlanForecast forecast(&setup, described);
  if (goal == DraftGoal::kFastest && !forecast.known()) {
    throw ConfigError(
        "init: the speed of this machine has not been measured, and the fastest plan depends on "
        "it; `longshore check machine --rates` measures it in a minute or two");
  }
  const bool timed = goal != DraftGoal::kSmallest && forecast.known();
  PlanSearch search =
      timed ? forecast.search(scope)
            : PlanSearch(setup.inputs, setup.machine, search_axes(setup.inputs, scope), no_time);
  const std::vector<PlanPoint> points = search.frontier();
  if (points.empty()) return std::nullopt;
  return timed ? points.front() : *std::ranges::min_element(points, {}, memory_of);
}

int64_t longest_sequences(const MeasuredRun& setup, int64_t most, const SearchScope& scope) {
  PlanInputs inputs = setup.inputs;
  while (inputs.max_tokens < most) {
    PlanInputs longer = inputs;
    longer.max_tokens = std::min(2 * longer.max_tokens, most);
    if (!fits_somehow(longer, setup.machine, scope)) break;
    inputs.max_tokens = longer.max_tokens;
  }
  return inputs.max_tokens;
}

}  // namespace longshore
