// PlanSizes: the sizes and counts from which the plans of device, host memory and drives are made:
// bytes of a unit on this rank, and the slots and buffers of a step. Pure functions of the plan's
// inputs, which must outlive this object; any thread.
#pragma once

#include <initializer_list>
#include <vector>

#include "offload/plan/plan_inputs.h"
#include "offload/schedule/pass_plan.h"
#include "shard/flat_layout.h"
#include "shard/input_tier.h"

namespace longshore {

// Multiplies; throws DoesNotFitError on overflow.
Bytes plan_product(std::initializer_list<int64_t> factors);
// Rounds up to the alignment of device buffers.
Bytes buffer_bytes(Bytes bytes);

class PlanSizes {
 public:
  explicit PlanSizes(const PlanInputs& inputs);

  const PlanInputs& inputs() const { return inputs_; }
  const ModelSpec& model() const { return model_; }
  const std::vector<FlatLayout>& layouts() const { return layouts_; }

  int64_t positions() const { return positions_; }          // of a micro-batch, at most
  int64_t micro_batches() const { return micro_batches_; }  // of a step, on one rank at most
  // Returns how many units keep their autograd graphs, so that backward need not recompute them.
  int32_t kept_graphs() const;
  // Returns which results the others keep beside their activation checkpoints.
  KeptResults kept_results() const {
    return inputs_.recompute ? inputs_.keep_results : KeptResults::kNone;
  }

  bool gathers() const;  // parameters are gathered by a collective (all-gather)
  bool reduces() const;  // gradients are summed over ranks
  bool trains() const { return !inputs_.decode.alone; }  // there are train passes
  // Returns how many buffers for gradients of units in work are on the device; 0: nothing is
  // trained.
  int32_t gradient_buffers() const;
  int32_t input_slots() const;    // > 0: activation checkpoints are offloaded through N slots
  int32_t gradient_ring() const;  // > 0: units reuse N host gradient slots

  Bytes gathered_bytes(size_t unit) const;  // all parameters in the compute dtype, on the device
  Bytes fetched_bytes(size_t unit) const;   // the part that this rank copies from host memory
  Bytes gradient_bytes(size_t unit) const;  // on the device
  Bytes update_bytes(size_t unit) const;    // read and written by the update of the rank's shard
  Bytes host_gradient_bytes() const;        // of all units
  // Returns the bytes that a read of the unit's frozen parameters takes from the model's files, on
  // the first rank; 0 where they are in a tier.
  Bytes file_bytes(size_t unit) const;
  Bytes batch_bytes() const;  // inputs of a step: tokens, positions, targets, keys
  // Returns the bytes of the gradient of a unit's output, for one micro-batch.
  Bytes carry_gradient_bytes(const UnitSpec& unit) const;
  // Returns the groups of units whose activation checkpoints are kept together.
  const SharedInputGroups& runs() const { return runs_; }
  // Returns the bytes of a group's activation checkpoints, for all micro-batches, and those without
  // kept results.
  Bytes run_bytes(const SharedInputGroup& run) const;
  Bytes run_bytes_of_inputs(const SharedInputGroup& run) const;
  // Returns the bytes of the carry's resident tensors, for all micro-batches.
  Bytes resident_bytes() const;
  // Returns the sizes of the device slots of gathered units.
  PassInputs slots() const;

 private:
  Bytes host_gradient_bytes(int32_t ring) const;
  Bytes for_micro_batches(Bytes per_position) const;

  const PlanInputs& inputs_;
  const ModelSpec& model_;
  SharedInputGroups runs_;
  std::vector<FlatLayout> layouts_;
  int64_t positions_ = 0;
  int64_t micro_batches_ = 0;
};

}  // namespace longshore
