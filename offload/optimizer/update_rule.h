// UpdateRule: the interface of an element-wise optimizer. Owned by OptimizerPipeline, whose owner
// thread calls stage(); the pool's threads call apply() concurrently. UpdateSlice is what it works
// on; clipping by the global norm scales the gradient before.
//
// The rule assigns parameters to groups; each group has its own scalars in a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "shard/moments.h"
#include "shard/unit_spec.h"

namespace longshore {

// UpdateSlice: state and gradient of a range of elements of one parameter. Non-owning spans.

// All spans have equal element counts, in one of two forms:
//   fp32    master; also high if the device reads a bf16 parameter, else high is empty
//   split   high and low, the halves of the master; master is empty. Only here may moments be
//           narrower than fp32; the slice then begins at a multiple of 256 of its parameter.
struct UpdateSlice {
  std::span<float> master;
  std::span<uint16_t> high;
  std::span<uint16_t> low;
  std::vector<MomentSpan> regions = {};  // in the order of the rule's list
  std::span<const std::byte> gradient;
  DType gradient_dtype = DType::kF32;  // kF32 or kBF16
  RoundingStream rounding;             // of moments narrower than fp32

  size_t elements() const {
    return gradient.size() / static_cast<size_t>(width_of(gradient_dtype));
  }
};

// An optimizer step whose gradients are in host memory.
struct StepUpdate {
  int64_t update = 1;  // counts applied updates from 1; skipped steps do not count
  double lr = 0.0;     // of parameters in no group
  double clip_scale = 1.0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Returns what the rule keeps beside each parameter. The rule, or its class, owns the list.
  virtual std::span<const StateRegion> regions() const = 0;
  // Returns the seed of the stochastic rounding; rules that keep fp32 alone need none.
  virtual uint64_t seed() const { return 0; }
  virtual int32_t group_of(const ParamSpec& parameter) const = 0;
  // Computes the scalars of every group for the step.
  virtual void stage(const StepUpdate& update) = 0;
  // Updates the slice by the staged step, element by element; the caller set its random bits.
  virtual void apply(int32_t group, const UpdateSlice& slice) const = 0;
};

// clip: clipping by the global norm, as in torch.nn.utils.clip_grad_norm_. Pure function.

// Returns the factor for every gradient; 1 if max_norm is 0 (no clipping).
inline double clip_scale(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace longshore
