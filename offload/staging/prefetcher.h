// Prefetcher: brings units from their home to the stage ring as the pass plan says: the rank's
// shard is copied to its place in the slot, then gathered in place with the shard group's others.
// Owned by the engine, used by its thread. It is the only one that fills slots.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "device/copy_engine.h"
#include "offload/schedule/pass_plan.h"
#include "offload/staging/stage_ring.h"
#include "shard/flat_layout.h"
#include "shard/shard_store.h"

namespace longshore {

class Prefetcher {
 public:
  struct Parts {
    ShardStore* store = nullptr;
    StageRing* ring = nullptr;
    CopyEngine* copies = nullptr;
    Communicator* shards = nullptr;  // the shard group; null: the rank holds whole units
    const std::vector<FlatLayout>* layouts = nullptr;
    Rank shard;  // in the shard group
  };
  // All parts must outlive the prefetcher.
  explicit Prefetcher(const Parts& parts);

  // Units fetched from now on are of this version.
  void set_version(StateVersion version) { version_ = version; }
  // Begins a pass; what the slots held before counts for nothing. `pass` must outlive it.
  void begin_pass(const PassPlan* pass);
  // The next visit, which must be the unit's: its leases, itself first. Fetches for later visits
  // are under way when it returns.
  std::vector<UnitLease> visit(UnitId unit);

 private:
  void fetch(const Placed& placed);
  Communicator::Segments copy_shard(UnitId unit, std::span<std::byte> slot);

  Parts parts_;
  const PassPlan* pass_ = nullptr;
  size_t next_visit_ = 0;
  std::vector<Completion> gathers_;  // by slot
  StateVersion version_;
};

}  // namespace longshore
