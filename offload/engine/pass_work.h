// PassWork: runs the operations of a schedule with the engine's parts. Owned by the engine; lanes
// call it.
#pragma once

#include "offload/engine/engine_parts.h"
#include "offload/schedule/step_executor.h"
#include "shard/slots.h"

namespace longshore {

class PassWork final : public StepWork {
 public:
  // The parts must outlive the work.
  explicit PassWork(EngineParts* parts)
      : parts_(*parts),
        gradients_("gradient buffer", parts->plan.device.gradient_buffers),
        staging_("staging slot", kInputStagingSlots) {}

  void run(const Op& op) override;

 private:
  void update(const Op& op);
  void move_input(const Op& op);
  void compute(const Op& op);
  void reduce(const Op& op);
  void drain(const Op& op);

  // With kBackward, updates precede the norm of all gradients, so a non-finite one ends the run.
  bool updates_in_backward() const { return parts_.plan.step.overlap == UpdateOverlap::kBackward; }

  EngineParts& parts_;
  SlotOwners<GradientBuffer> gradients_;
  SlotOwners<StagingSlot> staging_;
};

}  // namespace longshore
