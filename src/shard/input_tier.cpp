#include "shard/input_tier.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

// Returns whether a tensor has its own bytes in a group.
bool is_kept(const CarryTensorSpec& tensor) {
  return !tensor.running && !tensor.passes && !tensor.resident;
}

}  // namespace

void InputTier::write(UnitId unit, StagingSlot slot, int32_t) {
  LONGSHORE_CHECK(false) << "unit " << unit << ": no inputs are written from slots (" << slot
                         << ")";
}

void InputTier::read(UnitId unit, StagingSlot slot, int32_t) {
  LONGSHORE_CHECK(false) << "unit " << unit << ": no inputs are read to slots (" << slot << ")";
}

SharedInputGroups::SharedInputGroups(const ModelSpec& model, KeptResults keep) {
  of_unit_.push_back(-1);  // the first unit has no input
  bool trains = model.units.front().has_trainable();
  for (size_t i = 1; i < model.units.size(); ++i) {
    trains = trains || model.units[i].has_trainable();
    const std::vector<CarryTensorSpec>& carry = model.units[i - 1].carry_out;
    const bool joins = std::ranges::any_of(
        carry, [](const CarryTensorSpec& tensor) { return tensor.passes && !tensor.resident; });
    if (joins) {
      runs_.back().last = model.units[i].id;
    } else if (std::ranges::any_of(carry, is_kept)) {
      runs_.push_back({.number = static_cast<int32_t>(runs_.size()) + 1,
                       .first = model.units[i].id,
                       .last = model.units[i].id});
    } else {
      of_unit_.push_back(-1);
      continue;
    }
    of_unit_.push_back(static_cast<int32_t>(runs_.size()) - 1);
    const bool keeps = std::ranges::any_of(
        model.units[i].results,
        [keep](const CarryTensorSpec& result) { return result.kept_from <= keep; });
    if (keeps && trains) runs_.back().results = keep;
  }
}

const SharedInputGroup* SharedInputGroups::of(UnitId unit) const {
  const int32_t run = of_unit_.at(static_cast<size_t>(unit.value));
  return run < 0 ? nullptr : &runs_[static_cast<size_t>(run)];
}

Bytes resident_bytes_per_position(const ModelSpec& model, DType compute) {
  Bytes sum = 0;
  for (const UnitSpec& unit : model.units) {
    for (const CarryTensorSpec& tensor : unit.carry_out) {
      if (!tensor.resident || tensor.passes) continue;
      sum += tensor.bytes_per_position(compute, CarryUse::kValue);
    }
  }
  return sum;
}

Bytes kept_bytes_per_position(const ModelSpec& model, const SharedInputGroup& run, DType compute) {
  Bytes end = input_bytes_per_position(model, run, compute);
  for (int32_t unit = run.first.value; unit <= run.last.value; ++unit) {
    for (const CarryTensorSpec& tensor : model.unit(UnitId(unit)).results) {
      if (!run.keeps(tensor)) continue;
      end = align_up(end, kResultAlignment) + tensor.bytes_per_position(compute, CarryUse::kValue);
    }
  }
  return end;
}

Bytes input_bytes_per_position(const ModelSpec& model, const SharedInputGroup& run, DType compute) {
  Bytes sum = 0;
  for (int32_t unit = run.first.value; unit <= run.last.value; ++unit) {
    for (const CarryTensorSpec& tensor : model.unit(UnitId(unit - 1)).carry_out) {
      if (is_kept(tensor)) sum += tensor.bytes_per_position(compute, CarryUse::kValue);
    }
  }
  return sum;
}

}  // namespace longshore
