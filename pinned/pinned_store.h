// PinnedStore: the host tier: a rank's shards in one exact-size arena, one slab for each unit.
// Owned by the engine; lanes call it as the interface says. Leases are checked: a unit's state has
// one lease and no parameter lease beside it.
//
// Arena: [ slab of unit 0 | slab of unit 1 | ... | join region ]. The join region exists when the
// parameter must be made from the two halves of a split master (fp32 compute); one lease at a time
// uses it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "pinned/pinned_arena.h"
#include "pinned/shared_shards.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"

namespace longshore {

class PinnedStore final : public ShardStore, public SharedShards {
 public:
  // `pool` must outlive the store. State is all zeros until it is loaded.
  PinnedStore(const std::vector<FlatLayout>& layouts, const StateOptions& options,
              bool register_with_gpus, WorkerPool* pool, bool shared = false);
  ~PinnedStore() override;

  // What host_bytes() will be.
  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts, const StateOptions& options);
  // The part of it that joins split masters; 0 where nothing needs joining.
  static Bytes planned_join_bytes(const std::vector<FlatLayout>& layouts,
                                  const StateOptions& options);

  const StateOptions& options() const override { return options_; }
  std::unique_ptr<ParameterLease> parameters(UnitId unit) override;
  std::unique_ptr<StateLease> state(UnitId unit) override;
  Bytes host_bytes() const override { return arena_.size_bytes(); }
  // Not where masters are joined.
  const HostMapping& mapping() const override { return arena_.mapping(); }
  std::span<const std::byte> mapped_parameters(std::span<const std::byte> arena,
                                               UnitId unit) const override;

 private:
  class Parameters;
  class State;
  struct Unit {
    SlabLayout layout;
    std::span<std::byte> slab;
    int parameter_leases = 0;
    bool state_leased = false;
  };

  Unit& at(UnitId unit);
  void end_parameters(Unit& unit, bool joined);
  void end_state(Unit& unit);
  std::span<std::byte> region(const Unit& unit, Region region) const;
  // Where the parameter lies as the device reads it; not where masters are joined.
  std::span<std::byte> host_parameters(const Unit& unit) const;
  std::span<const std::byte> join(const Unit& unit);

  StateOptions options_;
  WorkerPool* pool_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  std::span<std::byte> join_region_;
  std::mutex leases_;  // of the units' leases and what follows; never held over work
  bool join_leased_ = false;
};

}  // namespace longshore
