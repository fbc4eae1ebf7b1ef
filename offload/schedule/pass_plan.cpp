#include "offload/schedule/pass_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kNever = SIZE_MAX;

class Planner {
 public:
  Planner(const ModelSpec& model, Pass pass, const PassInputs& inputs)
      : inputs_(inputs), contents_(inputs.slot_bytes.size()) {
    for (UnitId unit : execution_order(model, pass)) {
      const bool backward = pass == Pass::kTrain && units_.size() + 1 >= model.units.size();
      needs_.push_back(
          units_leased_for(model.unit(unit), backward ? Half::kBackward : Half::kForward));
      units_.push_back(unit);
    }
    for (const Placed& placed : inputs.begin) {
      contents_.at(static_cast<size_t>(placed.slot.value)) = placed.unit;
    }
  }

  PassPlan make() {
    PassPlan plan;
    for (size_t i = 0; i < needs_.size(); ++i) plan.executions.push_back(make_execution(i));
    return plan;
  }

 private:
  UnitExecution make_execution(size_t index) {
    UnitExecution execution;
    execution.unit = units_[index];
    for (UnitId unit : needs_[index]) {
      const bool placed = place(unit, index, index, execution);
      LONGSHORE_CHECK(placed) << "no slot for unit " << unit << " of execution " << index;
    }
    for (UnitId unit : needs_[index]) execution.leases.push_back({unit, *find(unit)});
    const size_t end = std::min(needs_.size(), index + 1 + static_cast<size_t>(inputs_.prefetch));
    for (size_t ahead = index + 1; ahead < end; ++ahead) {
      for (UnitId unit : needs_[ahead]) {
        if (!place(unit, index, ahead, execution)) return execution;
      }
    }
    return execution;
  }

  std::optional<DeviceSlot> find(UnitId unit) const {
    for (size_t slot = 0; slot < contents_.size(); ++slot) {
      if (contents_[slot] == unit) return DeviceSlot(static_cast<int32_t>(slot));
    }
    return std::nullopt;
  }

  // Returns the first execution from `from` on that needs the unit.
  size_t next_use(UnitId unit, size_t from) const {
    for (size_t i = from; i < needs_.size(); ++i) {
      if (std::ranges::find(needs_[i], unit) != needs_[i].end()) return i;
    }
    return kNever;
  }

  // Puts the unit, which execution `wanted` needs, into a slot whose unit no execution from `now`
  // to `wanted` needs: the smallest empty slot that fits, else the slot whose unit is needed last.
  // Returns false if no such slot exists.
  bool place(UnitId unit, size_t now, size_t wanted, UnitExecution& execution) {
    if (find(unit)) return true;
    const Bytes bytes = inputs_.unit_bytes.at(static_cast<size_t>(unit.value));
    std::optional<size_t> best;
    size_t best_use = 0;
    for (size_t slot = 0; slot < contents_.size(); ++slot) {
      if (inputs_.slot_bytes[slot] < bytes) continue;
      const size_t use = contents_[slot] ? next_use(*contents_[slot], now) : SIZE_MAX;
      if (use <= wanted) continue;
      const bool better = !best || rank_of(slot, use) > rank_of(*best, best_use);
      if (!better) continue;
      best = slot;
      best_use = use;
    }
    if (!best) return false;
    contents_[*best] = unit;
    execution.fetches.push_back({unit, DeviceSlot(static_cast<int32_t>(*best))});
    return true;
  }

  // Ranks candidates: empty before filled, later use before earlier, smaller before larger.
  std::tuple<bool, size_t, Bytes> rank_of(size_t slot, size_t use) const {
    return {!contents_[slot].has_value(), use, -inputs_.slot_bytes[slot]};
  }

  const PassInputs& inputs_;
  std::vector<UnitId> units_;                    // by execution
  std::vector<std::vector<UnitId>> needs_;       // by execution: the units that it leases
  std::vector<std::optional<UnitId>> contents_;  // by slot
};

}  // namespace

std::vector<UnitId> units_leased_for(const UnitSpec& unit, Half half) {
  if (half == Half::kBackward && !unit.backward_reads_parameters) return {};
  std::vector<UnitId> units = {unit.id};
  for (ParamRef ref : unit.tied) {
    if (std::ranges::find(units, ref.unit) == units.end()) units.push_back(ref.unit);
  }
  return units;
}

std::vector<UnitId> execution_order(const ModelSpec& model, Pass pass) {
  std::vector<UnitId> order;
  if (!computes(pass)) return order;
  const auto count = static_cast<int32_t>(model.units.size());
  for (int32_t i = 0; i + 1 < count; ++i) order.push_back(UnitId(i));
  if (pass == Pass::kForward) {
    order.push_back(UnitId(count - 1));
    return order;
  }
  int32_t first_trainable = count - 1;
  for (const UnitSpec& unit : model.units) {
    if (unit.has_trainable()) first_trainable = std::min(first_trainable, unit.id.value);
  }
  for (int32_t i = count - 1; i >= first_trainable; --i) order.push_back(UnitId(i));
  return order;
}

PassPlan plan_pass(const ModelSpec& model, Pass pass, const PassInputs& inputs) {
  LONGSHORE_CHECK(inputs.unit_bytes.size() == model.units.size());
  return Planner(model, pass, inputs).make();
}

std::vector<Placed> left_in_slots(const PassPlan& plan) {
  std::map<int32_t, Placed> left;
  for (const UnitExecution& execution : plan.executions) {
    for (const Placed& placed : execution.fetches) left[placed.slot.value] = placed;
  }
  std::vector<Placed> all;
  for (const auto& [slot, placed] : left) all.push_back(placed);
  return all;
}

}  // namespace longshore
