// Prefetcher: brings a unit from its tier to a slot of the stage ring. It copies the rank's shard
// to its offsets in the slot and gathers the others in place; where the group shares a machine, it
// copies every rank's shard from that rank's memory. Owned by the engine; the H2D lane calls
// fetch() and the gather lane gather(), concurrently. Nothing else fills slots; the schedule
// decides the order.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "comm/operations/communicator.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "offload/staging/stage_ring.h"
#include "pinned/pinned_store.h"
#include "shard/flat_layout.h"
#include "shard/shard_store.h"

namespace longshore {

// NodeShards: the parameters of a shard group whose ranks share a machine ("host gather"). Each
// rank maps the other ranks' host arenas, so it copies whole units to its device without a
// collective. Owned by the engine.
//
// A rank publishes the version of each unit in its part, and readers wait for that version. No rank
// overwrites a part that another still reads: updates begin after the step's totals, which every
// rank joins after its last read.

class NodeShards {
 public:
  // Collective over `group`, the shard group of one machine, a communicator for host memory.
  // `shards` must outlive this. `check_ranks` throws if another rank has failed; it may be empty,
  // and any thread calls it. `register_with_gpus` also registers the other ranks' arenas, for
  // asynchronous copies at full speed; throws CudaError if a GPU refuses.
  NodeShards(const SharedShards* shards, size_t units, Communicator* group,
             std::function<void()> check_ranks, bool register_with_gpus);

  // Publishes that the rank's own part of the unit has this version. Any thread.
  void publish(UnitId unit, StateVersion version);
  // Blocks until every member's part has this version.
  void wait_for(UnitId unit, StateVersion version) const;
  // Returns a member's part of the unit, its segments end to end. Call wait_for() first.
  std::span<const std::byte> shard(int32_t member, UnitId unit) const;
  int32_t members() const { return static_cast<int32_t>(arenas_.size()); }

 private:
  using Board = std::span<std::atomic<int64_t>>;  // by unit: the version
  static Board board_of(const HostMapping& mapping);

  const SharedShards* shards_;
  std::function<void()> check_ranks_;
  HostMapping own_board_;
  std::vector<HostMapping> peer_arenas_, peer_boards_;
  std::vector<HostRegistration> registered_;        // destroyed before the mappings
  std::vector<std::span<const std::byte>> arenas_;  // by member
  std::vector<Board> boards_;                       // by member
};

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
