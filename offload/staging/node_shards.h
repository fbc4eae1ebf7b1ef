// NodeShards: the parameters of a shard group whose ranks share a machine, as every one of them can
// read them: each rank's host arena is mapped by the others, so a unit is copied whole to a device
// without a collective ("host gather"). Owned by the engine.
//
// Who may read when: a rank publishes the version of each unit that its part holds, and readers
// wait for it. Nobody overwrites what another still reads: updates begin after the step's totals,
// which every rank adds to after its last read.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "comm/operations/communicator.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "pinned/shared_shards.h"

namespace longshore {

class NodeShards {
 public:
  // Collective over `group`, the shard group, all of one machine, for memory of the host. `shards`
  // must outlive this. `check_ranks`: throws where another rank has failed; may be empty. Any
  // thread. `register_with_gpus`: the other ranks' arenas too, so that copies from them run at full
  // speed and behind the thread; CudaError where a GPU refuses.
  NodeShards(const SharedShards* shards, size_t units, Communicator* group,
             std::function<void()> check_ranks, bool register_with_gpus);

  // The rank's own part of the unit is of this version now. Any thread.
  void publish(UnitId unit, StateVersion version);
  // Blocks until every member's part is of this version.
  void wait_for(UnitId unit, StateVersion version) const;
  // A member's part of the unit, its segments end to end, after wait_for().
  std::span<const std::byte> shard(int32_t member, UnitId unit) const;
  int32_t members() const { return static_cast<int32_t>(arenas_.size()); }

 private:
  using Board = std::span<std::atomic<int64_t>>;  // by unit: the version
  static Board board_of(const HostMapping& mapping);

  const SharedShards* shards_;
  std::function<void()> check_ranks_;
  HostMapping own_board_;
  std::vector<HostMapping> peer_arenas_, peer_boards_;
  std::vector<HostRegistration> registered_;        // end before the mappings do
  std::vector<std::span<const std::byte>> arenas_;  // by member
  std::vector<Board> boards_;                       // by member
};

}  // namespace longshore
