#include "offload/forecast/decode_forecast.h"

#include <algorithm>

#include "base/errors.h"
#include "base/texts.h"
#include "offload/plan/plan_text.h"
#include "shard/flat_layout.h"

namespace longshore {
namespace {

// The work of one token of every sequence.
struct TokenWork {
  double read_bytes = 0.0;  // weights and states, from the device's memory
  double seconds = 0.0;     // of the products
};

TokenWork work_of(const TierPlan& plan, const ModelSpec& model, const ForecastInputs& inputs,
                  const ComputeRates& rates) {
  LONGSHORE_CHECK(inputs.units.size() == model.units.size()) << inputs.units.size();
  const auto rows = static_cast<double>(plan.decode.sequences);
  const auto width = static_cast<double>(width_of(plan.state.compute));
  const auto layouts = make_layouts(model, plan.topology.shard_ranks, plan.state.compute);
  // States fill up from nothing to their whole length.
  TokenWork work{.read_bytes = static_cast<double>(plan.device.states.bytes) / 2.0};
  for (size_t i = 0; i < model.units.size(); ++i) {
    const UnitFlops& unit = inputs.units[i];
    Bytes held = 0;
    for (const UnitId leased : units_leased_for(model.units[i])) {
      held += layouts.at(static_cast<size_t>(leased.value)).flat_bytes();
    }
    // A row multiplies each element that it uses once: two operations.
    const double used = rows * unit.products / 2.0 * width;
    work.read_bytes += std::min(static_cast<double>(held), used);
    work.seconds += rows * unit.products / product_flops(rates, unit.width);
  }
  return work;
}

}  // namespace

std::optional<double> decoding_tokens_per_second(const TierPlan& plan, const ModelSpec& model,
                                                 const ForecastInputs& inputs,
                                                 const MachineRates& rates) {
  if (plan.decode.sequences == 0) return std::nullopt;
  const bool cpu = plan.device.kind == DeviceKind::kCpu;
  const ComputeRates* const compute = rates.of(plan.device.kind, inputs.compute);
  if (compute == nullptr || compute->products.empty()) return std::nullopt;
  // Products with adapters are bound by the memory of a GPU, so their rate is that of the memory.
  const double memory = cpu ? rates.dram : compute->adapters;
  double link = cpu ? rates.copy : rates.link.to_device;
  if (!cpu && !plan.host.pinned.state) link = unregistered_rate(link, rates.copy, plan.host.pinned);
  const auto moved = static_cast<double>(plan.step.moved_by_forward());
  if (memory <= 0.0 || (moved > 0.0 && link <= 0.0)) return std::nullopt;
  const TokenWork work = work_of(plan, model, inputs, *compute);
  const double computing = std::max(work.read_bytes / memory, work.seconds);
  const double copying = moved > 0.0 ? moved / link : 0.0;
  const double seconds = cpu ? computing + copying : std::max(computing, copying);
  if (seconds <= 0.0) return std::nullopt;
  return static_cast<double>(plan.decode.sequences) / seconds;
}

std::string describe_decoding(const TierPlan& plan, std::optional<double> tokens_per_second) {
  const std::string text = decoding_text(plan);
  if (text.empty() || !tokens_per_second) return text;
  return text + formatted("; about %.3g tokens/s", *tokens_per_second) +
         (plan.decode.sequences > 1 ? " in all" : "") + ", an estimate";
}

}  // namespace longshore
