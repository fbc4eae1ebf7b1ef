// WalkWork: what the operations of a walk over units' state do. Lives as long as the walk; called
// by the lanes.
#pragma once

#include "offload/schedule/step_executor.h"
#include "shard/state_walk.h"

namespace longshore {

class WalkWork final : public StepWork {
 public:
  // Both must outlive the work.
  WalkWork(ShardStore* store, const StateWalk::Visit& visit) : store_(store), visit_(visit) {}

  void run(const Op& op) override;

 private:
  ShardStore* store_;
  const StateWalk::Visit& visit_;
};

}  // namespace longshore
