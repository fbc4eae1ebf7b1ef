// NodeShards: the parameters of a shard group whose ranks share a machine ("host gather"). Each
// rank maps the other ranks' host arenas, so it copies whole units to its device without a
// collective. Owned by the engine.
//
// A rank publishes the version of each unit in its part, and readers wait for that version. No rank
// overwrites a part that another still reads: updates begin after the step's totals, which every
// rank joins after its last read.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "comm/operations/communicator.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "pinned/pinned_store.h"

namespace longshore {

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

}  // namespace longshore
