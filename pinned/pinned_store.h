// PinnedStore: the host tier, which keeps a rank's shards in one arena of exact size with one slab
// for each unit. The engine owns it; lanes call it as ShardStore describes. It checks leases: a
// unit's state has at most one lease, and none while its parameters are leased.
//
// The arena is [ slab of unit 0 | slab of unit 1 | ... | join region ]. The join region exists if
// the compute dtype is fp32 and masters are split into two halves; one lease at a time uses it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "device/host_mapping.h"
#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"
#include "shard/input_tier.h"
#include "shard/shard_store.h"

namespace longshore {

// The interface of a tier whose parameters the other ranks of the machine can read. Each rank has
// one mapping, and the layout is the same on all ranks of a shard group. A ShardStore implements
// it.
class SharedShards {
 public:
  virtual ~SharedShards() = default;
  virtual const HostMapping& mapping() const = 0;
  // Returns the unit's parameters in the compute dtype within `mapping`, of this or another rank.
  virtual std::span<const std::byte> mapped_parameters(std::span<const std::byte> mapping,
                                                       UnitId unit) const = 0;
};

class PinnedStore final : public ShardStore, public SharedShards {
 public:
  // `pool` must outlive the store. State is all zeros until it is loaded.
  PinnedStore(const std::vector<FlatLayout>& layouts, const StateOptions& options,
              bool register_with_gpus, WorkerPool* pool, bool shared = false);
  ~PinnedStore() override;

  // Returns the bytes that host_bytes() will report.
  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts, const StateOptions& options);
  // Returns the bytes of the join region, which planned_bytes() includes; 0 if no master is split.
  static Bytes planned_join_bytes(const std::vector<FlatLayout>& layouts,
                                  const StateOptions& options);

  const StateOptions& options() const override { return options_; }
  std::unique_ptr<ParameterLease> parameters(UnitId unit) override;
  std::unique_ptr<StateLease> state(UnitId unit) override;
  Bytes host_bytes() const override { return arena_.size_bytes(); }
  // Callers use these two only if the store has no join region.
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

  void end_parameters(Unit& unit, bool joined);
  void end_state(Unit& unit);
  std::span<std::byte> region(const Unit& unit, Region region) const;
  // The parameters in the compute dtype; only valid if the store has no join region.
  std::span<std::byte> host_parameters(const Unit& unit) const;
  std::span<const std::byte> join(const Unit& unit);

  StateOptions options_;
  WorkerPool* pool_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  std::span<std::byte> join_region_;
  // Protects the units' counts of leases too; never held over work.
  Mutex leases_;
  bool join_leased_ LONGSHORE_GUARDED_BY(leases_) = false;
};

// HostInputs: the activation checkpoints of units in host memory between forward and backward. Each
// has a fixed offset in one arena of the planned size. The engine's InputOffload owns it.

class HostInputs final : public InputTier {
 public:
  // `unit_bytes`: bytes by unit, for all micro-batches; 0 if the activations stay on the device.
  HostInputs(const std::vector<Bytes>& unit_bytes, int64_t micro_batches, bool register_with_gpus,
             WorkerPool& pool);

  Bytes host_bytes() const override { return arena_.size_bytes(); }
  std::vector<std::span<std::byte>> places(UnitId unit,
                                           std::optional<StagingSlot> slot) const override;

 private:
  PinnedArena arena_;
  std::vector<std::vector<std::span<std::byte>>> places_;  // by unit, then by micro-batch
};

}  // namespace longshore
