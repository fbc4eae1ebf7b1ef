// Prefetcher: brings units from their home to the stage ring. Owned by the engine, used by its
// thread. It is the only one that fills slots.
#pragma once

#include "base/ids.h"
#include "device/copy_engine.h"
#include "offload/stage_ring.h"
#include "shard/shard_store.h"

namespace longshore {

class Prefetcher {
 public:
  // All must outlive the prefetcher.
  Prefetcher(ShardStore* store, StageRing* ring, CopyEngine* copies);

  // Units fetched from now on are of this version; slots with older ones are refilled.
  void set_version(StateVersion version) { version_ = version; }
  // Starts the copy of a unit that a slot does not hold yet.
  void fetch(UnitId unit);
  // The unit's lease; fetches it first where nobody did.
  UnitLease lease(UnitId unit);

 private:
  ShardStore* store_;
  StageRing* ring_;
  CopyEngine* copies_;
  StateVersion version_;
};

}  // namespace longshore
