// PassWork: what the operations of a schedule do with the engine's parts. Owned by the engine;
// called by the lanes.
#pragma once

#include "offload/engine/engine_parts.h"
#include "offload/schedule/step_executor.h"
#include "shard/slot_owners.h"

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

  // Gradients are applied before the norm of all is known: one that is not finite ends the run.
  bool updates_in_backward() const { return parts_.plan.step.overlap == UpdateOverlap::kBackward; }

  EngineParts& parts_;
  SlotOwners gradients_;  // the device's gradient buffers
  SlotOwners staging_;    // slots of inputs on their way to drives and back
};

}  // namespace longshore
