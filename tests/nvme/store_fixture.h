// Fixtures of the store's tests: small models, an update that touches every region, and drives on
// simulated media. The update is a pure function of the step, so any state can be checked.
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
// Returns a model of two units of a few blocks.
ModelSpec tiny_model();

// Returns all combinations of state formats and compute types.
std::vector<StateOptions> all_state_options();

// Returns the traffic of one update of all units.
DriveTraffic planned_update(const std::vector<FlatLayout>& layouts,
                            const NvmeStoreOptions& options);

// Sets parameters and moments of a unit to the values of `step`; frozen ones only at step 0.
void write_step(ShardStore& store, const std::vector<FlatLayout>& layouts, int32_t unit,
                int64_t step);
// Sets every unit to the values of `step`, in order.
void write_step(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t step);

// Returns the difference between the state and the values of `step`; empty if they are equal.
std::string difference(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t step);

// SimDrives: media that outlive stores, as drives outlive processes.
class SimDrives {
 public:
  // The faults of each drive from now on; empty for none.
  std::vector<SimInjector> injectors;
  uint64_t seed = 1;

  // kInline: drives that work inside waits, for one thread; kThreads: drives with own threads.
  enum class Work : uint8_t { kInline, kThreads };
  MakeDrives maker(Work work = Work::kInline);
  std::vector<std::unique_ptr<SimMedium>> media;
  // Leaves the media as after power loss.
  void lose_power(SimRandom& random);
};

NvmeStoreOptions small_store(const StateOptions& state, bool parameters_on_drives, int drives);

}  // namespace longshore
