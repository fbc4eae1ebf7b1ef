// NvmeInputs: activation checkpoints on the drives between a step's forward and backward, and the
// staging slots that they pass through. The schedule decides which checkpoint uses which slot when.
// Nothing outlives the process: checksums stay in memory, the files are unlinked. The engine's
// InputOffload owns it; the write lane writes, the read lane reads, several units at once, each in
// its own slot.
//
// A part on the drives is one unit's checkpoint of one micro-batch, so that a step with fewer
// micro-batches moves fewer bytes.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "nvme/parts/part_mover.h"
#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"
#include "shard/input_tier.h"

namespace longshore {

struct NvmeInputOptions {
  struct Input {
    UnitId unit;
    Bytes bytes = 0;  // of all micro-batches
  };
  std::vector<Input> saved = {};     // units that use a staging slot
  std::vector<UnitId> written = {};  // those of them that go to the drives
  int64_t micro_batches = 1;
  Geometry geometry;
  int drives = 1;
  int32_t rank = 0;
  bool register_with_gpus = false;
};

class NvmeInputs final : public InputTier {
 public:
  // `pool` must outlive this.
  NvmeInputs(const NvmeInputOptions& options, const MakeDrives& make_drives, WorkerPool* pool);
  ~NvmeInputs() override;

  // Returns the bytes of the staging slots.
  static Bytes planned_bytes(const NvmeInputOptions& options);
  static StripeMap make_map(const NvmeInputOptions& options);
  // Returns a checkpoint's size in a slot and on the drives: whole blocks per micro-batch.
  static Bytes staged_bytes(Bytes bytes, int64_t micro_batches);

  Bytes host_bytes() const override { return arena_.size_bytes(); }
  std::vector<std::span<std::byte>> places(UnitId unit,
                                           std::optional<StagingSlot> slot) const override;
  void write(UnitId unit, StagingSlot slot, int32_t micro_batches) override;
  void read(UnitId unit, StagingSlot slot, int32_t micro_batches) override;
  DriveTraffic traffic() const override { return {.read = read_bytes_, .written = written_bytes_}; }
  const StripeMap& map() const { return map_; }

 private:
  struct Unit {
    Bytes bytes = 0;      // of one micro-batch
    int first_part = -1;  // of the first micro-batch; -1: never written
  };
  struct Slot {
    std::span<std::byte> memory;
    std::vector<PartIo> ios;  // by micro-batch
  };

  const Unit& at(UnitId unit) const;
  // Returns a micro-batch's bytes in the slot, in whole blocks as on the drives.
  std::span<std::byte> part(const Unit& unit, const Slot& slot, int32_t micro_batch) const;

  NvmeInputOptions options_;
  StripeMap map_;
  std::vector<Unit> units_;
  PinnedArena arena_;
  std::vector<std::unique_ptr<Drive>> drives_;  // destroyed before the memory that they use
  std::unique_ptr<PartMover> mover_;
  SlotVector<StagingSlot, Slot> slots_;
  std::vector<uint64_t> hashes_;  // by chunk: of the last write
  std::atomic<Bytes> read_bytes_ = 0, written_bytes_ = 0;
};

}  // namespace longshore
