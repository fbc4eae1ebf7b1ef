// StepCommit: the schedule's commit. The run stages the step that the next updates make, the pass
// that writes them makes it durable on all ranks or on none, and the run then takes the result.
// Owned by the engine: its thread stages and takes between passes, a lane runs.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/operations/communicator.h"
#include "shard/durability.h"
#include "shard/shard_store.h"

namespace longshore {

// Exchanges the commit protocol's ballots among all ranks over a communicator.
class CommAgreement final : public Agreement {
 public:
  explicit CommAgreement(Communicator* all) : all_(all) {}
  Outcome reduce(const Ballot& mine) override;

 private:
  Communicator* all_;  // null: one rank
};

// A completed commit.
struct CommittedStep {
  DurablePoint point;
  double seconds = 0.0;
};

class StepCommit {
 public:
  // Both must outlive this; `store` is null for a tier that commits nothing, `all` for one rank.
  StepCommit(DurableStore* store, Communicator* all) : store_(store), agreement_(all) {}

  // Returns the committed step that the tier resumes from. Collective.
  std::optional<DurablePoint> start(uint64_t random) {
    return store_ == nullptr ? std::nullopt : store_->start(agreement_, random);
  }
  // Returns whether the tier commits; else there is nothing to stage.
  bool commits() const { return store_ != nullptr; }
  // Returns the path of a file that lost its name, as DurableStore does.
  std::string lost_file() const { return store_ == nullptr ? "" : store_->lost_file(); }
  // Stages the record; the previous one must be committed.
  void stage(const DurableStep& record);
  // Commits the staged record; does nothing if the run staged none.
  void run();
  // Returns the commit since the last call; none with one version, which never commits.
  std::optional<CommittedStep> take() { return std::exchange(done_, std::nullopt); }

 private:
  DurableStore* store_;
  CommAgreement agreement_;
  std::optional<DurableStep> staged_;
  std::optional<CommittedStep> done_;
};

}  // namespace longshore
