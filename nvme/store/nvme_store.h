// NvmeStore: the disk tier: a rank's state on its drives, with the parameters in host memory or on
// the drives too. Owned by the engine; lanes call it as the interface says, checksums and joins run
// on the pool, I/O on the drives' threads. One mutex covers the bookkeeping and is never held over
// I/O, checksums or conversions: state slots belong to the update's thread, which changes them
// under the mutex for others to see; parameter slots to whoever marked them as being filled.
//
// The optimizer's pass streams through the I/O window: while unit i is leased, unit i + 1 is being
// read and unit i - 1 written. A state lease that is given back unchanged costs no write.
// Parameters of a unit whose write is still under way come from the window. Everything is one arena
// of the planned size:
//
//   [ parameters of every unit | I/O window ]
//
// Failures of writes are kept and thrown at the next commit: the last commit stays.
//
// With one version kept (options.versions) nothing ever is committed: half the space, and a start
// finds nothing. All the rest is the same, checksums in memory included.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "nvme/commit/versioned_chunks.h"
#include "nvme/store/unit_parts.h"
#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"

namespace longshore {

struct NvmeStoreOptions {
  StateOptions state;
  bool parameters_on_drives = false;
  RunKey run;
  int32_t rank = 0;
  int32_t ranks = 1;
  Geometry geometry;
  int drives = 1;
  int versions = 2;  // of the state on the drives; 1: no step is durable
  // Units in the window at once: one leased, one read ahead, one written behind.
  int state_slots = 3;
  // Units whose parameters are in memory at once, where they live on the drives.
  int parameter_slots = 2;
  bool register_with_gpus = false;
};

class NvmeStore final : public ShardStore {
 public:
  // `pool` must outlive the store. `start` comes first.
  NvmeStore(const std::vector<FlatLayout>& layouts, const NvmeStoreOptions& options,
            const MakeDrives& make_drives, WorkerPool* pool);
  ~NvmeStore() override;

  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts,
                             const NvmeStoreOptions& options);
  static StripeMap make_map(const std::vector<FlatLayout>& layouts,
                            const NvmeStoreOptions& options);
  // What one update of all units moves, without manifests and tables.
  static DriveTraffic planned_update_traffic(const std::vector<FlatLayout>& layouts,
                                             const NvmeStoreOptions& options);

  // Recovers what the drives hold, checks all of it, and reads the parameters. Without a commit the
  // state is all zeros until it is loaded and committed. Collective; `random` differs between
  // starts. With one version kept there never is a commit, and the files become this run's.
  // kForget starts anew over what this run left, whatever its layout.
  const std::optional<CommitPoint>& start(Agreement& agreement, uint64_t random,
                                          Existing existing = Existing::kUse);
  // Makes the state that was updated since the last commit durable, on all ranks or on none.
  // Collective. A skipped step updates nothing and is recorded all the same. May run beside
  // `parameters`, not beside `state`: an update deferred into the next forward pass is committed at
  // any time after its last unit and before the next update's first. With one version kept it only
  // ends the writes and throws what one failed with, on this rank alone.
  void commit(const DurableStep& record, Agreement& agreement);
  const std::optional<CommitPoint>& committed() const { return chunks_->committed(); }

  const StateOptions& options() const override { return options_.state; }
  std::unique_ptr<ParameterLease> parameters(UnitId unit) override;
  std::unique_ptr<StateLease> state(UnitId unit) override;
  Bytes host_bytes() const override { return arena_.size_bytes(); }

  // Begins to read what `parameters` will want, if there is room; else does nothing.
  void prefetch_parameters(UnitId unit) override;

  // Since the start, of parts.
  DriveTraffic traffic() const;
  const StripeMap& map() const { return map_; }

 private:
  class HostParameters;
  class DriveParameters;
  class State;
  struct Unit {
    UnitParts parts;
    std::array<int, 3> part_ids{-1, -1, -1};  // by role; -1: the unit has none
    std::span<std::byte> parameters = {};     // in host memory; empty on the drives
    int parameter_leases = 0;
    bool state_leased = false;
    int64_t changes = 0;  // counts the writes: cached parameters of an older count are stale
  };
  struct StateSlot {
    enum class Use : uint8_t { kFree, kReading, kLeased, kWriting };
    std::span<std::byte> memory;
    Use use = Use::kFree;
    int32_t unit = -1;
    int64_t since = 0;  // the oldest writing one is waited for
    int copiers = 0;    // threads that copy the unit's parameters out while it is written
    std::array<PartIo, 3> ios;
    std::array<SealedPart, 3> sealed;
  };
  struct ParameterSlot {
    enum class Use : uint8_t {
      kEmpty,
      kReading,  // from the drives; nobody waits yet
      kFilling,  // a thread waits for the read, checks and converts
      kReady,
    };
    std::span<std::byte> memory;
    Use use = Use::kEmpty;
    int32_t unit = -1;
    int64_t changes = -1;
    int leases = 0;
    int64_t since = 0;
    std::array<PartIo, 3> ios;
    std::span<const std::byte> ready;
  };
  using Lock = std::unique_lock<std::mutex>;
  struct Sizes {
    Bytes parameters = 0, state_slot = 0, parameter_slot = 0, window = 0;
    Bytes total() const { return parameters + window; }
  };
  static Sizes sizes_of(const std::vector<FlatLayout>& layouts, const NvmeStoreOptions& options);

  void carve(const std::vector<FlatLayout>& layouts);
  Unit& at(UnitId unit);
  bool in_host_memory(const Unit& unit, PartRole role) const;
  std::span<std::byte> part_memory(const Unit& unit, StateSlot& slot, PartRole role) const;
  std::span<std::byte> region(const Unit& unit, StateSlot& slot, Region region, Segment segment);
  std::exception_ptr finish_reads(std::span<PartIo> ios);
  // State slots.
  StateSlot* find_state_slot(int32_t unit, StateSlot::Use use);
  StateSlot& take_state_slot();
  StateSlot* idle_state_slot();
  StateSlot& read_state(int32_t unit);
  void set_use(StateSlot& slot, StateSlot::Use use);
  void start_reading(int32_t unit, StateSlot& slot);
  void finish_reading(StateSlot& slot);
  void finish_writing(StateSlot& slot);
  int32_t next_with_state(int32_t unit, int32_t step) const;
  void read_ahead(int32_t after);
  void give_back(int32_t unit, StateSlot& slot) noexcept;
  void write_behind(int32_t unit, StateSlot& slot);
  void write_again(int32_t unit);
  void refresh_host_parameters(Unit& unit, StateSlot& slot);
  void read_host_parameters(int32_t unit);
  void rethrow_failure();
  // Parameter slots; all with the mutex held, which is given up while something is waited for.
  ParameterSlot* find_parameter_slot(const Unit& unit, int32_t id);
  ParameterSlot* idle_parameter_slot(bool may_drop_reads);
  ParameterSlot& fill_parameter_slot(int32_t unit, Lock& lock);
  void start_filling(int32_t unit, ParameterSlot& slot, Lock& lock);
  void copy_from(StateSlot& source, ParameterSlot& slot, Lock& lock);
  std::exception_ptr finish_filling(ParameterSlot& slot, Lock& lock);
  void settle_parameter_reads(int32_t unit, Lock& lock);
  void arrange(ParameterSlot& slot) const;
  void convert(const UnitParts& parts, std::span<const std::byte> part,
               std::span<std::byte> parameters) const;

  NvmeStoreOptions options_;
  WorkerPool* pool_;
  StripeMap map_;
  PinnedArena arena_;
  std::span<std::byte> window_;
  mutable std::mutex mutex_;         // of what the slots, the units and the members below say
  std::condition_variable changed_;  // a slot was filled, or is copied from no more
  std::vector<Unit> units_;
  std::vector<StateSlot> state_slots_;
  std::vector<ParameterSlot> parameter_slots_;
  std::vector<std::unique_ptr<Drive>> drives_;  // after the memory they move bytes of
  std::unique_ptr<VersionedChunks> chunks_;
  DriveTraffic traffic_;
  int64_t clock_ = 0;
  int32_t last_leased_ = -1;     // of the update's thread, as is the next
  int32_t read_ahead_step_ = 1;  // updates go through the units in order, or backwards
  std::exception_ptr failure_;
};

}  // namespace longshore
