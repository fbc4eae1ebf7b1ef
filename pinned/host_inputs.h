// HostInputs: the activation checkpoints of units in host memory between forward and backward. Each
// has a fixed offset in one arena of the planned size. The engine's InputOffload owns it.
#pragma once

#include <vector>

#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"
#include "shard/input_tier.h"

namespace longshore {

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
