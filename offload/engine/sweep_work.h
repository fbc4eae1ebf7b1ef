// SweepWork: runs the operations of a state sweep. Lives as long as the sweep; lanes call it.
#pragma once

#include "offload/schedule/step_executor.h"
#include "shard/shard_store.h"

namespace longshore {

class SweepWork final : public StepWork {
 public:
  // Both must outlive the work.
  SweepWork(ShardStore* store, const StateSweep::Visitor& visit) : store_(store), visit_(visit) {}

  void run(const Op& op) override;

 private:
  ShardStore* store_;
  const StateSweep::Visitor& visit_;
};

}  // namespace longshore
