// Made-up machines, costs and inputs of plans. Test code.
#pragma once

#include <vector>

#include "offload/plan/tier_plan.h"

namespace longshore {

inline Machine made_up_machine(Bytes memory = 16 * kGiB) {
  Machine machine;
  machine.cpu_model = "Test CPU";
  machine.physical_cores = 4;
  machine.logical_cores = 8;
  machine.ram_total = memory;
  machine.ram_available = memory;
  return machine;
}

// Returns 1 KiB forward, 3 KiB backward and 2 KiB saved per position; twice that for the last unit.
inline UnitCosts made_up_costs(size_t units) {
  return [units](int64_t positions, int64_t) {
    std::vector<UnitCost> costs(units,
                                {positions * kKiB, positions * 3 * kKiB, positions * 2 * kKiB});
    costs.back() = {positions * 2 * kKiB, positions * 6 * kKiB, 0};
    return costs;
  };
}

inline PlanInputs made_up_inputs(const ModelSpec& model) {
  PlanInputs inputs;
  inputs.model = &model;
  inputs.costs = made_up_costs(model.units.size());
  inputs.sequences_per_step = 7;
  inputs.micro_batch = 2;
  inputs.max_tokens = 50;
  return inputs;
}

}  // namespace longshore
