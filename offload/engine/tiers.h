// Tiers: the stores of a rank's parameters, state and inputs, made by a plan. Owned by the
// engine. Only this file and offload/plan know the tiers; all other code uses interfaces. A custom
// MakeTiers adds a tier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "comm/operations/communicator.h"
#include "offload/plan/tier_plan.h"
#include "pinned/pinned_store.h"
#include "pinned/worker_pool.h"
#include "shard/durability.h"
#include "shard/flat_layout.h"
#include "shard/frozen_source.h"
#include "shard/input_tier.h"
#include "shard/shard_store.h"

namespace longshore {

struct Tiers {
  std::unique_ptr<ShardStore> state;     // and parameters
  SlottedStore* slots = nullptr;         // `state`, if it passes through slots
  DurableStore* durable = nullptr;       // `state`, if it makes steps durable
  const SharedShards* shared = nullptr;  // `state`, if other ranks read parameters from it
  std::unique_ptr<InputTier> inputs;     // null: inputs stay on the device

  // Leases the state that the schedule brought to `slot`; empty: the state is in host memory.
  std::unique_ptr<ShardStore::StateLease> lease_state(UnitId unit,
                                                      std::optional<StateSlot> slot) const {
    return slot ? slots->state_in(unit, *slot) : state->state(unit);
  }
};

struct TierRequest {
  const TierPlan& plan;
  const std::vector<FlatLayout>& layouts;
  Rank rank;
  RunKey run;        // the run whose state persists on drives
  WorkerPool* pool;  // must outlive the tiers
  const ModelSpec& model;
  Rank shard;                            // in its shard group
  const FrozenSource* frozen = nullptr;  // for a plan with frozen_in_files; must outlive the tiers
};
using MakeTiers = std::function<Tiers(const TierRequest&)>;

// Makes host and drive tiers. A plan with drives opens and locks its files.
Tiers make_tiers(const TierRequest& request);
// Makes the same tiers, with frozen parameters from `frozen` where the plan says so.
MakeTiers make_tiers_over(const FrozenSource* frozen);

// StepCommit: the schedule's commit. The run stages the step that the next updates make, the pass
// that writes them makes it durable on all ranks or on none, and the run then takes the result.
// Owned by the engine: its thread stages and takes between passes, a lane runs.

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
