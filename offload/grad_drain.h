// GradDrain: takes reduced gradient shards down from the device: casts them to the drain dtype,
// sums the squares of what is kept, and copies it to the shard's home. Owned by the engine; its
// thread calls it. Padding is neither copied nor summed.
//
// The norm is summed in double: blocks of 4096 elements in a fixed order inside each parameter's
// piece, blocks, pieces and units in order. It does not depend on threads or on the order of
// draining.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_engine.h"
#include "offload/adamw.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"

namespace longshore {

// The norm of all drained gradients of a step.
struct GradNorm {
  double norm = 0.0;
  bool finite = true;
  std::optional<UnitId> first_non_finite;  // in forward order
};

class GradDrain {
 public:
  // All pointers must outlive the drain. `staging`: device memory of planned_staging_bytes().
  GradDrain(ShardStore* store, CopyEngine* copies, const std::vector<FlatLayout>& layouts,
            Rank rank, std::span<std::byte> staging, WorkerPool* pool);

  // Where cast gradients wait for the copy; 0 when they are drained as they are.
  static Bytes planned_staging_bytes(const std::vector<FlatLayout>& layouts,
                                     const StateOptions& options);

  // `gradient`: the rank's shard of the unit's trainable segments, end to end, fp32 on the device.
  // A unit is drained once a step.
  void drain(UnitId unit, std::span<const float> gradient);
  // The norm over all units drained since the last finish(), and begins a new step.
  GradNorm finish();

 private:
  // A parameter's piece, by its place in the trainable shard.
  struct Piece {
    int64_t begin = 0;
    int64_t elements = 0;
  };
  double drain_piece(UnitId unit, const Piece& piece, std::span<const float> gradient);
  double sum_blocks(std::span<const float> values, std::span<uint16_t> bf16);

  ShardStore* store_;
  CopyEngine* copies_;
  WorkerPool* pool_;
  SimdLevel simd_ = best_simd_level();
  std::span<std::byte> staging_;
  std::vector<std::vector<Piece>> pieces_;      // by unit
  std::vector<int64_t> shard_elements_;         // by unit
  std::vector<std::optional<double>> squares_;  // by unit: drained in this step
  std::vector<double> block_squares_;           // of the chunk that is drained now
};

}  // namespace longshore
