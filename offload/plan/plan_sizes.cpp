#include "offload/plan/plan_sizes.h"

#include <algorithm>

#include "base/errors.h"
#include "device/device_memory.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/staging/gradient_drain.h"

namespace longshore {
namespace {

constexpr Bytes kTokenBytes = 8;  // LibTorch's indices are int64
constexpr Bytes kBatchRows = 3;   // tokens, positions, targets; keys of dropout are one more

// With updates in backward one host gradient is in its update while the next one is drained. Over
// equal units more slots were no faster in any simulation.
constexpr int32_t kGradientRing = 2;

}  // namespace

Bytes plan_product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (int64_t factor : factors) {
    const auto next = checked_multiply(result, factor);
    if (!next)
      throw DoesNotFitError(
          "the plan's sizes are too large to count; lower "
          "data.max_tokens or train.micro_batch");
    result = *next;
  }
  return result;
}

Bytes buffer_bytes(Bytes bytes) {
  return align_up(bytes, kDeviceBufferAlignment);
}

PlanSizes::PlanSizes(const PlanInputs& inputs)
    : inputs_(inputs),
      model_(*inputs.model),
      runs_(model_, kept_results()),
      layouts_(make_layouts(model_, inputs.topology.shard_ranks, inputs.state.compute)),
      positions_(plan_product({inputs.micro_batch, inputs.loss.answers, inputs.max_tokens})) {
  const int64_t at_once = plan_product({inputs.micro_batch, inputs.topology.ranks});
  micro_batches_ = (inputs.sequences_per_step + at_once - 1) / at_once;
}

int32_t PlanSizes::kept_graphs() const {
  const auto before_loss = static_cast<int32_t>(model_.units.size()) - 1;
  return inputs_.recompute ? std::min(inputs_.kept_graphs, before_loss) : before_loss;
}

bool PlanSizes::gathers() const {
  return inputs_.topology.shard_ranks > 1 && inputs_.gather == GatherMode::kCollective;
}

bool PlanSizes::reduces() const {
  return inputs_.topology.shard_ranks > 1 || inputs_.topology.replicas() > 1;
}

// Gradients of neighbouring units are computed, summed over ranks and drained at the same time,
// each in its own buffer; without prefetch nothing overlaps.
int32_t PlanSizes::gradient_buffers() const {
  if (!trains()) return 0;
  const int64_t stages = reduces() ? 3 : 2;
  return static_cast<int32_t>(std::min(inputs_.prefetch + 1, stages));
}

int32_t PlanSizes::input_slots() const {
  if (!inputs_.offload_inputs) return 0;
  // A unit that keeps its results is saved while the next one computes, which writes a third slot.
  return inputs_.prefetch > (kept_results() == KeptResults::kNone ? 1 : 0) ? 3 : 2;
}

// For few or unequal units a ring may need more memory than one slot per unit; then it is not used.
int32_t PlanSizes::gradient_ring() const {
  const bool ring = inputs_.overlap == UpdateOverlap::kBackward &&
                    host_gradient_bytes(kGradientRing) < host_gradient_bytes(0);
  return ring ? kGradientRing : 0;
}

Bytes PlanSizes::gathered_bytes(size_t unit) const {
  return layouts_[unit].flat_bytes();
}

Bytes PlanSizes::fetched_bytes(size_t unit) const {
  return gathered_bytes(unit) / (gathers() ? inputs_.topology.shard_ranks : 1);
}

Bytes PlanSizes::gradient_bytes(size_t unit) const {
  return plan_product({layouts_[unit].trainable_elements(), width_of(DType::kF32)});
}

Bytes PlanSizes::update_bytes(size_t unit) const {
  Bytes sum = 0;
  for (Segment segment : kTrainedSegments) {
    sum += update_traffic(inputs_.state, segment, layouts_[unit].shard_elements(segment)).total();
  }
  return sum;
}

Bytes PlanSizes::host_gradient_bytes() const {
  if (!trains()) return 0;
  return host_gradient_bytes(gradient_ring());
}

Bytes PlanSizes::host_gradient_bytes(int32_t ring) const {
  return HostGradients::planned_bytes(layouts_, {.dtype = inputs_.state.drain, .ring = ring});
}

Bytes PlanSizes::file_bytes(size_t unit) const {
  if (!inputs_.frozen_files) return 0;
  Bytes sum = 0;
  for (const FrozenPiece& piece : layouts_[unit].frozen_pieces(Rank(0))) {
    if (is_packed(piece.type)) {
      sum += piece.bytes;
      continue;
    }
    const ParamSpec& parameter =
        model_.units[unit].parameters[static_cast<size_t>(piece.parameter)];
    const auto found = inputs_.frozen_files->find(parameter.name);
    const DType stored = found == inputs_.frozen_files->end() ? DType::kBF16 : found->second;
    sum += plan_product({piece.bytes / width_of(number_of(piece.type)), width_of(stored)});
  }
  return sum;
}

Bytes PlanSizes::batch_bytes() const {
  const Bytes rows = kBatchRows + (model_.has_dropout() ? 1 : 0);
  return plan_product({rows, micro_batches_, positions_, kTokenBytes});
}

Bytes PlanSizes::carry_gradient_bytes(const UnitSpec& unit) const {
  const Bytes bytes = unit.carry_bytes_per_position(inputs_.state.compute, CarryUse::kGradient);
  return buffer_bytes(plan_product({positions_, bytes}));
}

Bytes PlanSizes::run_bytes(const SharedInputGroup& run) const {
  return for_micro_batches(kept_bytes_per_position(model_, run, inputs_.state.compute));
}

Bytes PlanSizes::run_bytes_of_inputs(const SharedInputGroup& run) const {
  return for_micro_batches(input_bytes_per_position(model_, run, inputs_.state.compute));
}

Bytes PlanSizes::resident_bytes() const {
  return for_micro_batches(resident_bytes_per_position(model_, inputs_.state.compute));
}

Bytes PlanSizes::for_micro_batches(Bytes per_position) const {
  return plan_product({micro_batches_, buffer_bytes(plan_product({positions_, per_position}))});
}

PassInputs PlanSizes::slots() const {
  PassInputs slots;
  slots.prefetch = inputs_.prefetch;
  size_t count = static_cast<size_t>(inputs_.prefetch) + 1;
  Bytes largest = 0;
  for (size_t i = 0; i < model_.units.size(); ++i) {
    count = std::max(count, units_leased_for(model_.units[i]).size());
    slots.unit_bytes.push_back(gathered_bytes(i));
    largest = std::max(largest, gathered_bytes(i));
  }
  if (inputs_.topology.keeps_gathered() || inputs_.decode.weights_stay) {
    slots.slot_bytes = slots.unit_bytes;
  } else {
    slots.slot_bytes.assign(count, largest);
  }
  return slots;
}

}  // namespace longshore
