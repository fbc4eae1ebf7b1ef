// UpdateRule: the interface of an optimizer. Owned by OptimizerPipeline, whose owner thread calls
// stage(); the pool's threads call apply() and apply_matrix() concurrently. UpdateSlice is what it
// works on; clipping by the global norm scales the gradient before.
//
// A rule works on elements, or needs whole matrices of some parameters (grain_of). Each of these
// matrices is on one rank then, which is what keep_matrices_whole marks for the layouts.
//
// The rule assigns parameters to groups; each group has its own scalars in a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  std::vector<MomentSpan> regions = {};  // those kept here, in the order of the rule's list
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

enum class UpdateGrain : uint8_t { kElements, kMatrices };

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Returns what the rule keeps beside each parameter. The list is a constant: plans and stores
  // that read it outlive the rule.
  virtual std::span<const StateRegion> regions() const = 0;
  // Returns the seed of the stochastic rounding; rules that keep fp32 alone need none.
  virtual uint64_t seed() const { return 0; }
  virtual int32_t group_of(const ParamSpec& parameter) const = 0;
  // Whole matrices need a parameter that holds some (ParamSpec::matrix_places).
  virtual UpdateGrain grain_of(const ParamSpec&) const { return UpdateGrain::kElements; }
  // Computes the scalars of every group for the step.
  virtual void stage(const StepUpdate& update) = 0;
  // Updates the slice by the staged step, element by element; the caller set its random bits.
  virtual void apply(int32_t group, const UpdateSlice& slice) const = 0;
  // Returns the floats of scratch that apply_matrix needs for a matrix of this size.
  virtual int64_t scratch_elements(int64_t /*rows*/, int64_t /*columns*/) const { return 0; }
  // Updates one whole matrix by the staged step. `matrix` counts elements of the slice, which may
  // have those of others between them. The scratch holds anything before.
  virtual void apply_matrix(int32_t group, const MatrixPlace& matrix, const UpdateSlice& slice,
                            std::span<float> scratch) const;
};

// Marks the trained parameters whose matrices the rule needs whole. Throws ConfigError for one that
// the units cut inside of a matrix, that holds no matrices, or beside which the rule keeps 8 bits.
void keep_matrices_whole(ModelSpec& model, const UpdateRule& rule);

// matrix_scratch: host memory for apply_matrix, as the plan counts it and the pipeline allocates
// it. Pure functions.

using ScratchElements = std::function<int64_t(int64_t rows, int64_t columns)>;

struct MatrixScratch {
  int64_t count = 0;     // matrices that are updated at once
  int64_t elements = 0;  // of each
  Bytes bytes() const { return count * elements * Bytes{sizeof(float)}; }
};
// Returns what `threads` threads need for the whole matrices of one unit at a time, on any rank.
MatrixScratch matrix_scratch(const ModelSpec& model, const ScratchElements& elements, int threads);

// clip: clipping by the global norm, as in torch.nn.utils.clip_grad_norm_. Pure function.

// Returns the factor for every gradient; 1 if max_norm is 0 (no clipping).
inline double clip_scale(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace longshore
