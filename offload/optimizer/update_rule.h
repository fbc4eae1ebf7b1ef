// UpdateRule: an element-wise optimizer as OptimizerPipeline needs it. Owned by the pipeline, whose
// owner thread calls stage(); apply() runs on the pool's threads, several at once.
//
// The rule sorts parameters into groups; a group is what has scalars of its own in a step.
#pragma once

#include <cstdint>

#include "offload/optimizer/update_slice.h"
#include "shard/unit_spec.h"

namespace longshore {

// An optimizer step whose gradients are in host memory.
struct StepUpdate {
  int64_t update = 1;  // counts applied updates from 1; a skipped step has none
  double lr = 0.0;     // of parameters in no group of their own
  double clip_scale = 1.0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual int32_t group_of(const ParamSpec& parameter) const = 0;
  // What the step needs, for every group.
  virtual void stage(const StepUpdate& update) = 0;
  // Updates the slice in place by the staged step, one element independent of the others. The
  // slice's random bits are set by the caller.
  virtual void apply(int32_t group, const UpdateSlice& slice) const = 0;
};

}  // namespace longshore
