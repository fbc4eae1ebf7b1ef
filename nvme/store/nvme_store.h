// NvmeStore: the NVMe tier: a rank's state on its drives, with the parameters in host memory or on
// the drives. The engine owns it. Lanes call it as the interface says; checksums and conversions
// run on the pool, I/O on the drives' threads. One mutex covers leases and serialises calls to
// VersionedChunks; it is never held during waits, checksums or conversions. The operation that
// fills a slot claims it for its unit; the one that empties it frees it.
//
// All memory is one arena of the planned size:
//
//   [ parameters of every unit | slots of state | slots of parameters ]
//
// Recovery reads everything through all slots together (the window). State that did not change is
// not written. A failed write is kept and thrown at the next commit; the last commit stays.
//
// With one version kept (options.versions) nothing is ever committed: it takes half the space, and
// a start finds nothing. Everything else is equal, including the checksums in memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "nvme/commit/manifest.h"
#include "nvme/commit/versioned_chunks.h"
#include "nvme/drive/drive.h"
#include "nvme/parts/stripe_map.h"
#include "nvme/store/unit_parts.h"
#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"
#include "shard/slots.h"
#include "shard/state_format.h"

namespace longshore {

struct NvmeStoreOptions {
  StateOptions state;
  bool parameters_on_drives = false;
  RunKey run;
  int32_t rank = 0;
  int32_t ranks = 1;
  Geometry geometry;
  int drives = 1;
  int versions = 2;         // of the state on the drives; 1: no step is durable
  int state_slots = 3;      // one is updated, one read ahead, one written back
  int parameter_slots = 2;  // with parameters on the drives: one is read, one copied
  bool register_with_gpus = false;
};

class NvmeStore final : public ShardStore, public SlottedStore, public DurableStore {
 public:
  // `pool` must outlive the store. `start` must be the first call.
  NvmeStore(const std::vector<FlatLayout>& layouts, const NvmeStoreOptions& options,
            const MakeDrives& make_drives, WorkerPool* pool);
  ~NvmeStore() override;

  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts,
                             const NvmeStoreOptions& options);
  static StripeMap make_map(const std::vector<FlatLayout>& layouts,
                            const NvmeStoreOptions& options);
  // The bytes that read_state, write_state and read_parameters of the unit move.
  struct UnitTraffic {
    Bytes state_read = 0, state_written = 0, parameters_read = 0;
  };
  static UnitTraffic traffic_of(const FlatLayout& layout, const NvmeStoreOptions& options);

  // Returns the bytes of a commit of a new version: checksum tables, and a manifest on each drive.
  static Bytes commit_bytes(const std::vector<FlatLayout>& layouts,
                            const NvmeStoreOptions& options);

  // Recovers the state on the drives, checks all of it, and reads the parameters. With one version
  // kept there is no commit to find, and the files become this run's.
  std::optional<DurablePoint> start(Agreement& agreement, uint64_t random) override;
  // With one version kept it only throws the failure of a write, on this rank alone.
  void commit(const DurableStep& record, Agreement& agreement) override;
  std::optional<DurablePoint> committed() const override;
  std::string lost_file() const override;

  const StateOptions& options() const override { return options_.state; }
  Bytes host_bytes() const override { return arena_.size_bytes(); }
  std::unique_ptr<ParameterLease> parameters(UnitId unit) override;
  std::unique_ptr<StateLease> state(UnitId unit) override;
  void read_state(UnitId unit, StateSlot slot) override;
  std::unique_ptr<StateLease> state_in(UnitId unit, StateSlot slot) override;
  void write_state(UnitId unit, StateSlot slot) override;
  void read_parameters(UnitId unit, ParameterSlot slot) override;
  void pass_parameters(UnitId unit, StateSlot from, ParameterSlot to) override;
  std::unique_ptr<ParameterLease> parameters_in(UnitId unit, ParameterSlot slot) override;

  // Counts parts only, not tables and manifests.
  DriveTraffic traffic() const override { return {.read = read_bytes_, .written = written_bytes_}; }
  const StripeMap& map() const { return map_; }

 private:
  class HostParameters;
  class DriveParameters;
  class State;
  struct Unit {
    UnitParts parts;
    std::array<int, 3> part_ids{-1, -1, -1};  // by role; -1: the unit has none
    std::span<std::byte> parameters = {};     // in host memory; empty with parameters on the drives
    int parameter_leases = 0;
    bool state_leased = false;
  };
  struct StateMemory {
    std::span<std::byte> memory;
    std::array<PartIo, 3> ios;
    std::array<SealedPart, 3> sealed;
  };
  struct ParameterMemory {
    std::span<std::byte> memory;
    std::array<PartIo, 3> ios;
    std::span<const std::byte> ready;  // in the device layout
  };
  struct Sizes {
    Bytes parameters = 0, state_slot = 0, parameter_slot = 0, window = 0;
    Bytes total() const { return parameters + window; }
  };
  static Sizes sizes_of(const std::vector<FlatLayout>& layouts, const NvmeStoreOptions& options);

  void carve(const std::vector<FlatLayout>& layouts);
  bool in_host_memory(const Unit& unit, PartRole role) const;
  std::span<std::byte> part_memory(const Unit& unit, StateMemory& slot, PartRole role) const;
  std::span<std::byte> region(const Unit& unit, StateMemory& slot, Region region, Segment segment);
  // ---- Leases.
  void begin_lease_of_state(UnitId id);
  void end_lease_of_state(UnitId id, StateSlot slot, bool whole) noexcept;
  void begin_lease_of_parameters(UnitId id);
  void end_lease_of_parameters(UnitId id);
  void rethrow_failure() LONGSHORE_REQUIRES(mutex_);
  bool has_point() const { return chunks_->committed().has_value(); }
  // Claims any free slot for an access outside of a schedule.
  template <typename Slot>
  static Slot claim_any(SlotOwners<Slot>& owners, UnitId unit, const char* what) {
    const std::optional<Slot> slot = owners.claim_any(unit);
    LONGSHORE_CHECK(slot) << "all slots of " << what << " are leased";
    return *slot;
  }
  // ---- I/O; all of these wait except start_read.
  void start_read(int part, std::span<std::byte> memory, PartIo& io, bool urgent);
  void finish_reads(std::span<PartIo> ios);
  void fill_state_slot(Unit& unit, StateMemory& slot);
  void fill_parameter_slot(Unit& unit, ParameterMemory& slot);
  void seal_and_write(UnitId id, Unit& unit, StateMemory& slot);
  void write_sealed(StateMemory& slot, const std::array<bool, 3>& roles);
  void write_again(UnitId id);
  void read_host_parameters(UnitId id);
  // ---- Parameter layouts.
  void refresh_host_parameters(Unit& unit, StateMemory& slot);
  // Puts the parameters into the slot in the device layout; the parts may already be in the slot.
  void arrange(const UnitParts& parts, std::span<const std::byte> parameters,
               std::span<const std::byte> frozen, ParameterMemory& slot) const;

  NvmeStoreOptions options_;
  WorkerPool* pool_;
  StripeMap map_;
  PinnedArena arena_;
  std::span<std::byte> window_;
  mutable Mutex mutex_;  // protects leases, failure_ and the serialised calls to chunks_
  std::vector<Unit> units_;
  SlotVector<StateSlot, StateMemory> state_slots_;
  SlotVector<ParameterSlot, ParameterMemory> parameter_slots_;
  SlotOwners<StateSlot> state_owners_;
  SlotOwners<ParameterSlot> parameter_owners_;
  std::vector<std::unique_ptr<Drive>> drives_;  // destroyed before the memory that they use
  std::unique_ptr<VersionedChunks> chunks_;
  std::atomic<Bytes> read_bytes_ = 0, written_bytes_ = 0;
  std::exception_ptr failure_ LONGSHORE_GUARDED_BY(mutex_);
};

}  // namespace longshore
