// Prefetcher: brings a unit from its tier to a slot of the stage ring: the rank's shard is copied
// to its place in the slot, then gathered in place with the shard group's others; or, where the
// group shares a machine, every rank's shard is copied from that rank's memory. Owned by the
// engine; fetch() is for the H2D lane, gather() for the gather lane, at the same time. It is the
// only one that fills slots; which and when is the schedule's decision.
#pragma once

#include <optional>
#include <vector>

#include "comm/operations/communicator.h"
#include "device/copy_engine.h"
#include "offload/staging/node_shards.h"
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
    Communicator* shards = nullptr;  // the shard group's gathers; null: the rank holds whole units
    const std::vector<FlatLayout>* layouts = nullptr;
    Rank shard;                  // in the shard group
    NodeShards* node = nullptr;  // set: units are copied whole, nothing is gathered
  };
  // All parts must outlive the prefetcher.
  explicit Prefetcher(const Parts& parts) : parts_(parts) {}

  // Units fetched from now on are of this version. Nothing may be under way.
  void set_version(StateVersion version) { version_ = version; }
  StateVersion version() const { return version_; }

  // Copies the rank's shard, all of the unit where it holds all, to the slot.
  // `parameters`: the slot that the store has them in; none: they are in host memory.
  void fetch(const Placed& placed, std::optional<int32_t> parameters);
  // Completes a slot that was fetched. Blocks the lane until the other ranks' parts are there.
  void gather(const Placed& placed);
  bool gathers() const { return parts_.shards != nullptr && parts_.node == nullptr; }

 private:
  // Copies the shard of a member of the group, its segments end to end, to its places.
  void copy_shard(const FlatLayout& flat, Rank shard, std::span<const std::byte> source,
                  std::span<std::byte> slot);
  const FlatLayout& layout(UnitId unit) const {
    return parts_.layouts->at(static_cast<size_t>(unit.value));
  }
  size_t width() const { return static_cast<size_t>(width_of(parts_.store->options().compute)); }

  Parts parts_;
  StateVersion version_;
};

}  // namespace longshore
