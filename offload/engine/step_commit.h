// StepCommit: what the schedule's commit does. The run says which step the next updates make, the
// pass that writes them makes it durable, on all ranks or on none, and the run learns of it
// afterwards. Owned by the engine: its thread stages and takes between passes, a lane runs.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/operations/communicator.h"
#include "shard/agreement.h"
#include "shard/shard_store.h"

namespace longshore {

// The commit protocol's questions, asked of all ranks over a communicator.
class CommAgreement final : public Agreement {
 public:
  explicit CommAgreement(Communicator* all) : all_(all) {}
  Outcome reduce(const Ballot& mine) override;

 private:
  Communicator* all_;  // null: one rank
};

// A commit that was made.
struct CommittedStep {
  DurablePoint point;
  double seconds = 0.0;
};

class StepCommit {
 public:
  // Both must outlive this; `all` null: one rank.
  StepCommit(ShardStore* store, Communicator* all) : store_(store), agreement_(all) {}

  // What the tier goes on from. Collective.
  std::optional<DurablePoint> start(uint64_t random) { return store_->start(agreement_, random); }
  // Whether there is anything to stage.
  bool commits() const { return store_->commits(); }
  // Only where the last one is committed.
  void stage(const DurableStep& record);
  // Nothing where nothing is staged: then whoever runs the pass keeps no record of its steps.
  void run();
  // The commit since the last call. None with one version kept, which is never committed.
  std::optional<CommittedStep> take() { return std::exchange(done_, std::nullopt); }

 private:
  ShardStore* store_;
  CommAgreement agreement_;
  std::optional<DurableStep> staged_;
  std::optional<CommittedStep> done_;
};

}  // namespace longshore
