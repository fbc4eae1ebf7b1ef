// NvmeInputs: the units' kept inputs on the drives between forward and backward of one step. What
// is saved in forward is written behind the pass through two staging slots and read ahead of
// backward through the same two. Nothing here outlives the process: checksums stay in memory, the
// files have no name. Owned by the engine's InputOffload; the D2H lane
// saves, the H2D lane loads, one at a time.
//
// Inputs are saved in the order of the units and loaded in the opposite one. So the last two that
// are saved never go to a drive: their slots still hold them when backward asks.
//
// A part on the drives is one unit's input of one micro-batch: a step with fewer micro-batches
// moves fewer bytes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/ids.h"
#include "nvme/parts/part_mover.h"
#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"

namespace longshore {

struct NvmeInputOptions {
  std::vector<Bytes> unit_bytes;  // by unit, of all micro-batches; 0: stays on the device
  int64_t micro_batches = 1;
  Geometry geometry;
  int drives = 1;
  int32_t rank = 0;
  bool register_with_gpus = false;
};

class NvmeInputs {
 public:
  static constexpr size_t kStagingSlots = 2;

  // `pool` must outlive this.
  NvmeInputs(const NvmeInputOptions& options, const MakeDrives& make_drives, WorkerPool* pool);
  ~NvmeInputs();

  // Of the staging slots.
  static Bytes planned_bytes(const NvmeInputOptions& options);
  static StripeMap make_map(const NvmeInputOptions& options);
  // What a step with all micro-batches moves, at most and normally.
  static DriveTraffic planned_traffic(const NvmeInputOptions& options);

  // Works on the places of a unit's inputs, one a micro-batch, each of its planned bytes.
  using Copy = std::function<void(std::span<const std::span<std::byte>> places)>;
  // `fill` puts the first `micro_batches` inputs of the unit into the places. IoError where an
  // earlier write failed.
  void save(UnitId unit, int32_t micro_batches, const Copy& fill);
  // `take` copies them out again. CorruptStateError where a drive gives other bytes.
  void load(UnitId unit, int32_t micro_batches, const Copy& take);

  Bytes host_bytes() const { return arena_.size_bytes(); }
  // Since the start.
  DriveTraffic traffic() const;
  const StripeMap& map() const { return map_; }

 private:
  struct Slot {
    enum class Use : uint8_t { kFree, kHeld, kWriting, kReading };
    std::span<std::byte> memory;
    Use use = Use::kFree;
    int32_t unit = -1;
    std::vector<PartIo> ios;  // by micro-batch
  };

  // In whole blocks, as on the drives.
  std::vector<std::span<std::byte>> parts(const Slot& slot, int32_t micro_batches) const;
  std::vector<std::span<std::byte>> places(const Slot& slot, int32_t micro_batches) const;
  Slot* find(int32_t unit);
  Slot* idle_slot();
  Slot& take_slot();
  void start_writing(Slot& slot, int32_t micro_batches);
  void finish_writing(Slot& slot);
  void start_reading(Slot& slot, int32_t unit, int32_t micro_batches);
  void finish_reading(Slot& slot);
  void read_ahead(int32_t below, int32_t micro_batches);

  NvmeInputOptions options_;
  StripeMap map_;
  std::vector<int> first_parts_;  // by unit: its part of the first micro-batch; -1: never written
  PinnedArena arena_;
  std::vector<std::unique_ptr<Drive>> drives_;  // after the memory they move bytes of
  std::unique_ptr<PartMover> mover_;
  mutable std::mutex mutex_;  // of all below
  std::vector<Slot> slots_;
  std::vector<uint64_t> hashes_;  // by chunk: of what was written last
  DriveTraffic traffic_;
};

}  // namespace longshore
