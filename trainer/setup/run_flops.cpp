#include "trainer/setup/run_flops.h"

#include <cmath>

#include "base/hash.h"
#include "base/texts.h"
#include "offload/engine/probe/probe_inputs.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

// A matrix product takes two operations per element and position. Each of attention's two products
// takes two per pair and head element; the causal mask leaves half of the pairs.
constexpr double kFlopsOfElement = 2.0;
constexpr double kFlopsOfPair = 4.0;
// The passes of a probe run that take as long as forward, without the gradients of weights:
// forward, forward again, and the gradient of the input. The unit with the loss runs forward once.
constexpr double kProbePasses = 3.0;
constexpr double kLossPasses = 2.0;

// The matrices of a unit's products. Those of adapters have few elements and are not counted, but
// the widths of the matrices that they adapt are: A is [rank, in] and B is [out, rank].
struct UnitMatrices {
  int64_t count = 0;
  double elements = 0.0, trained = 0.0;
  double looked_up = 0.0;  // elements of tables, which are no part of products
  double adapter_inputs = 0.0, adapter_outputs = 0.0;

  double trained_share() const { return elements > 0.0 ? trained / elements : 1.0; }
  void add(const ParamSpec& parameter) {
    if (!parameter.is_matrix()) return;
    if (parameter.adapter) {
      // Those of experts have one more dimension in front.
      const int64_t rows = *(parameter.shape.end() - 2), columns = parameter.shape.back();
      (rows < columns ? adapter_inputs : adapter_outputs) +=
          static_cast<double>(std::max(rows, columns));
    }
    if (parameter.looked_up) {
      looked_up += static_cast<double>(parameter.elements());
      return;
    }
    count += parameter.adapter ? 0 : 1;
    elements += static_cast<double>(parameter.elements());
    if (!parameter.frozen) trained += static_cast<double>(parameter.elements());
  }
};

UnitMatrices matrices_of(const ModelSpec& spec, const UnitSpec& unit) {
  UnitMatrices matrices;
  for (const ParamSpec& parameter : unit.parameters) matrices.add(parameter);
  for (const ParamRef& ref : unit.tied) {
    ParamSpec multiplied = spec.parameter(ref);
    multiplied.looked_up = false;
    matrices.add(multiplied);
  }
  return matrices;
}

}  // namespace

UnitFlops flops_of_unit(const Model& model, UnitId id, int64_t document) {
  const UnitSpec& unit = model.spec().unit(id);
  UnitFlops flops;
  const UnitMatrices matrices = matrices_of(model.spec(), unit);
  flops.trained = matrices.trained_share();
  flops.adapter_inputs = matrices.adapter_inputs;
  flops.adapter_outputs = matrices.adapter_outputs;
  if (matrices.count > 0) {
    const UnitWork work = unit_work(model, id, document, DeviceKind::kCpu);
    const double elements = work.matrix_elements - matrices.looked_up;
    flops.products = kFlopsOfElement * elements;
    flops.width = std::sqrt(elements / static_cast<double>(matrices.count));
  }
  flops.attention = kFlopsOfPair *
                    static_cast<double>(model.code_of(id).traits({}).attention_width) *
                    static_cast<double>(document) / 2.0;
  return flops;
}

std::string text_of_unit(const MeasuredRun& setup, UnitId unit) {
  const PlanInputs& inputs = setup.inputs;
  const Model& model = setup.source->model();
  std::string identity = OneUnitModel(model, unit).identity(inputs.state.compute);
  if (identity.empty())
    identity = setup.source->directory().fingerprint() + model.spec().unit(unit).name;
  return identity + "\n" + std::string(name_of(inputs.device)) + " " +
         std::string(name_of(inputs.state.compute)) + " " + std::to_string(setup.compute.threads) +
         " threads, documents of " + std::to_string(inputs.max_tokens) + "\n" + build_id() + "\n";
}

std::string text_of_run(const MeasuredRun& setup, const KnownRates& known) {
  const PlanInputs& inputs = setup.inputs;
  std::string text = std::string(name_of(inputs.device)) + " " +
                     std::string(name_of(inputs.state.compute)) + " " +
                     std::to_string(inputs.topology.ranks) + " ranks, " +
                     std::to_string(inputs.ranks_per_node) + " on a machine, " + build_id() + "\n";
  for (const ParamSpec& parameter : setup.source->whole().whole_parameters()) {
    for (const int64_t dimension : parameter.shape) text += " " + std::to_string(dimension);
  }
  text += "\nrates " + known.mark();
  for (const UnitSpec& unit : setup.source->spec().units) {
    for (const UnitPoint& point : known.find_unit(text_of_unit(setup, unit.id))) {
      text += formatted(" %lld %.9g %.9g", static_cast<long long>(point.positions),
                        point.seconds.forward, point.seconds.backward);
    }
  }
  return hash_text(hash64(text));
}

UnitSeconds split_of_probe(const OneUnitModel& model, double seconds) {
  if (!model.has_backward()) return {seconds, 0.0};
  const UnitMatrices matrices = matrices_of(model.spec(), model.spec().unit(model.probed()));
  const double trained = matrices.trained_share();
  if (model.probes_loss()) return {seconds / (kLossPasses + trained), seconds};
  const double forward = seconds / (kProbePasses + trained);
  return {forward, seconds - forward};
}

ForecastInputs forecast_inputs(const MeasuredRun& setup, const Model& model,
                               const KnownRates* known) {
  ForecastInputs inputs;
  const PlanInputs& plan = setup.inputs;
  const bool own = &model == &setup.source->model();
  for (const UnitSpec& unit : model.spec().units) {
    inputs.units.push_back(flops_of_unit(model, unit.id, plan.max_tokens));
    if (known == nullptr || !own) continue;
    inputs.units.back().measured = known->find_unit(text_of_unit(setup, unit.id));
  }
  inputs.tokens_per_step = plan.sequences_per_step * plan.sequence_tokens();
  inputs.ranks_per_node = plan.ranks_per_node;
  inputs.cores = setup.machine.physical_cores;
  inputs.compute = plan.state.compute;
  if (known != nullptr) inputs.corrections = known->find_factors(text_of_run(setup, *known));
  return inputs;
}

}  // namespace longshore
