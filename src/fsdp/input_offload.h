// InputOffload: where the units' kept inputs are between forward and backward: in one arena of host
// memory, or on the drives behind staging slots. Of the plan's exact size; owned by the engine.
// save() is for the D2H lane, load() for the H2D lane, of different units at the same time; the
// read and write lanes move staging slots to and from the drives.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_engine.h"
#include "fsdp/carry_store.h"
#include "nvme/store/nvme_inputs.h"
#include "pinned/pinned_arena.h"

namespace longshore {

class InputOffload {
 public:
  // In host memory. `unit_bytes`: by unit, for all micro-batches; 0 for inputs that stay on the
  // device.
  InputOffload(const std::vector<Bytes>& unit_bytes, int64_t micro_batches, bool register_with_gpus,
               CopyEngine* copies, WorkerPool& pool);
  // On the drives.
  InputOffload(std::unique_ptr<NvmeInputs> drives, CopyEngine* copies);

  // Copies the unit's inputs of the first `micro_batches` micro-batches, to the staging slot and
  // from it where inputs are on drives.
  void save(UnitId unit, std::optional<int32_t> staging, const CarryStore& carry,
            int32_t micro_batches);
  void load(UnitId unit, std::optional<int32_t> staging, CarryStore& carry, int32_t micro_batches);

  Bytes host_bytes() const;
  // Null where inputs are in host memory.
  NvmeInputs* drives() const { return drives_.get(); }

 private:
  // Where the unit's inputs are on the host, by micro-batch.
  std::vector<std::span<std::byte>> places(UnitId unit, std::optional<int32_t> staging) const;

  CopyEngine* copies_;
  std::optional<PinnedArena> arena_;
  std::vector<std::vector<std::span<std::byte>>> places_;  // in it: by unit, by micro-batch
  std::unique_ptr<NvmeInputs> drives_;                     // else
};

}  // namespace longshore
