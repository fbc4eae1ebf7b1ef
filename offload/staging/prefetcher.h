// Prefetcher: brings a unit from its tier to a slot of the stage ring. It copies the rank's shard
// to its offsets in the slot and gathers the others in place; where the group shares a machine, it
// copies every rank's shard from that rank's memory. Owned by the engine; the H2D lane calls
// fetch() and the gather lane gather(), concurrently. Nothing else fills slots; the schedule
// decides the order.
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
    SlottedStore* slots = nullptr;  // null: parameters are in host memory
    StageRing* ring = nullptr;
    CopyEngine* copies = nullptr;
    Communicator* shards = nullptr;  // the shard group's gathers; null: each rank holds whole units
    const std::vector<FlatLayout>* layouts = nullptr;
    Rank shard;                  // rank in the shard group
    NodeShards* node = nullptr;  // non-null: whole units are copied, nothing is gathered
  };
  // All parts must outlive the prefetcher.
  explicit Prefetcher(const Parts& parts) : parts_(parts) {}

  // Sets the version of units that are fetched from now on. No fetch or gather may be running.
  void set_version(StateVersion version) { version_ = version; }
  StateVersion version() const { return version_; }

  // Copies the rank's shard (or the whole unit, if the rank holds it) to the slot, from
  // `parameters`, or from host memory if it is empty.
  void fetch(const Placed& placed, std::optional<ParameterSlot> parameters);
  // Completes a fetched slot. Blocks the lane until the other ranks' parts have arrived.
  void gather(const Placed& placed);
  bool gathers() const { return parts_.shards != nullptr && parts_.node == nullptr; }

 private:
  // Copies a member's shard, its segments end to end in `source`, to its offsets in the slot.
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
