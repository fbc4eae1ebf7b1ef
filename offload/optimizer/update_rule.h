// UpdateRule: the interface of an element-wise optimizer. Owned by OptimizerPipeline, whose owner
// thread calls stage(); the pool's threads call apply() concurrently.
//
// The rule assigns parameters to groups; each group has its own scalars in a step.
#pragma once

#include <cstdint>

#include "offload/optimizer/update_slice.h"
#include "shard/unit_spec.h"

namespace longshore {

// An optimizer step whose gradients are in host memory.
struct StepUpdate {
  int64_t update = 1;  // counts applied updates from 1; skipped steps do not count
  double lr = 0.0;     // of parameters in no group
  double clip_scale = 1.0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual int32_t group_of(const ParamSpec& parameter) const = 0;
  // Computes the scalars of every group for the step.
  virtual void stage(const StepUpdate& update) = 0;
  // Updates the slice by the staged step, element by element; the caller set its random bits.
  virtual void apply(int32_t group, const UpdateSlice& slice) const = 0;
};

}  // namespace longshore
