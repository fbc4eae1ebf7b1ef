// Prefetcher: brings a unit from its tier to a slot of the stage ring. It copies the rank's shard
// to its offsets in the slot and gathers the others in place; where the group shares a machine, it
// copies every rank's shard from that rank's memory. Owned by the engine; the H2D lane calls
// fetch() and the gather lane gather(), concurrently. Only the prefetcher fills slots; the schedule
// decides the order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "comm/operations/communicator.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/device_memory.h"
#include "device/host_mapping.h"
#include "offload/schedule/pass_plan.h"
#include "pinned/pinned_store.h"
#include "shard/flat_layout.h"
#include "shard/shard_store.h"

namespace longshore {

// StageRing: the device slots that hold gathered units. Owned by the engine; the lanes that copy
// and gather fill slots while the compute lane leases others. A slot has the tag (unit, version),
// which is checked on every fill and lease. A leased slot is never refilled, and an incomplete slot
// is never leased. The schedule decides which unit uses which slot; the ring detects violations.

class StageRing;

// UnitLease: the right to read one slot of a ring, which outlives it. Move-only; releases on
// destruction.
class UnitLease {
 public:
  UnitLease(UnitLease&& other) noexcept;
  UnitLease& operator=(UnitLease&&) = delete;
  ~UnitLease();
  UnitId unit() const { return unit_; }
  // Returns the unit's flat parameter in the compute dtype, on the device.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class StageRing;
  UnitLease(StageRing* ring, DeviceSlot slot, UnitId unit, std::span<std::byte> bytes)
      : ring_(ring), slot_(slot), unit_(unit), bytes_(bytes) {}
  StageRing* ring_;  // null after a move
  DeviceSlot slot_;
  UnitId unit_;
  std::span<std::byte> bytes_;
};

class StageRing {
 public:
  // `slots` are device buffers, one for each slot.
  explicit StageRing(std::vector<std::span<std::byte>> slots);

  // Tags the slot (unit, version) and returns its first `unit_bytes` bytes; the caller fills them
  // and calls end_fill(). Throws CheckFailure if the slot is leased, being filled, or too small.
  std::span<std::byte> begin_fill(const Placed& placed, StateVersion version, Bytes unit_bytes);
  // Returns the bytes of a slot being filled with (unit, version); else throws CheckFailure.
  std::span<std::byte> filling(const Placed& placed, StateVersion version);
  void end_fill(const Placed& placed, StateVersion version);
  // Leases a slot, which may be leased several times at once. Throws CheckFailure unless it holds
  // all of (unit, version).
  UnitLease lease(const Placed& placed, StateVersion version);

 private:
  friend class UnitLease;
  enum class Content : uint8_t { kNothing, kFilling, kComplete };
  struct Slot {
    std::span<std::byte> memory;
    Content content = Content::kNothing;
    UnitId unit;
    StateVersion version;
    Bytes unit_bytes = 0;
    int leases = 0;
  };
  Slot& held(const Placed& placed, StateVersion version, Content content)
      LONGSHORE_REQUIRES(*mutex_);
  void release(DeviceSlot slot);

  std::unique_ptr<Mutex> mutex_ = std::make_unique<Mutex>();
  SlotVector<DeviceSlot, Slot> slots_ LONGSHORE_GUARDED_BY(*mutex_);
};

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

  Parts parts_;
  StateVersion version_;
};

}  // namespace longshore
