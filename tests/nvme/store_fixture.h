// What tests of the store share: small models, an update that touches every region, and drives on
// simulated media. The update is a pure function of the step, so that any state can be judged.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nvme/store/nvme_store.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"
#include "tests/nvme/sim_disk.h"

namespace longshore {

ModelSpec model_with_frozen();
// Two units of a few blocks.
ModelSpec tiny_model();

// All combinations that the state formats and compute types give.
std::vector<StateOptions> all_state_options();

// What one update of all units moves.
DriveTraffic planned_update(const std::vector<FlatLayout>& layouts,
                            const NvmeStoreOptions& options);

// Sets parameters and moments of a unit to what step `step` leaves; frozen ones only at step 0.
void write_step(ShardStore& store, const std::vector<FlatLayout>& layouts, int32_t unit,
                int64_t step);
// The same for every unit, in order.
void write_step(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t step);

// Empty, or what differs between the state and what `step` leaves.
std::string difference(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t step);

// Media that outlive stores, as drives outlive processes.
class SimDrives {
 public:
  // What each drive does wrong from now on; empty for nothing.
  std::vector<SimInjector> injectors;
  uint64_t seed = 1;

  // Drives that work inside waits, for one thread; or with threads of their own, for several.
  enum class Work : uint8_t { kInline, kThreads };
  MakeDrives maker(Work work = Work::kInline);
  std::vector<std::unique_ptr<SimMedium>> media;
  // After power loss.
  void lose_power(SimRandom& random);
};

NvmeStoreOptions small_store(const StateOptions& state, bool parameters_on_drives, int drives);

}  // namespace longshore
