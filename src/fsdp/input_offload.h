// InputOffload: the host's place for the units' kept inputs between forward and backward. One
// arena of the plan's exact size; owned by the engine. save() is for the D2H lane, load() for the
// H2D lane, of different units at the same time.
#pragma once

#include <span>
#include <vector>

#include "device/copy_engine.h"
#include "fsdp/carry_store.h"
#include "pinned/pinned_arena.h"

namespace longshore {

class InputOffload {
 public:
  // `unit_bytes`: by unit, for all micro-batches; 0 for inputs that stay on the device.
  InputOffload(const std::vector<Bytes>& unit_bytes, int64_t micro_batches, bool register_with_gpus,
               CopyEngine* copies, WorkerPool& pool);

  // Copies the unit's inputs of the first `micro_batches` micro-batches.
  void save(UnitId unit, const CarryStore& carry, int32_t micro_batches);
  void load(UnitId unit, CarryStore& carry, int32_t micro_batches);

 private:
  std::span<std::byte> place(UnitId unit, int32_t micro_batch) const;

  CopyEngine* copies_;
  PinnedArena arena_;
  std::vector<std::vector<std::span<std::byte>>> places_;  // by unit, by micro-batch
};

}  // namespace longshore
