// The gradient path after backward: GradientReducer sums a unit's gradients over ranks,
// GradientDrain moves the rank's shard to host memory, and HostGradients keeps it there until the
// update.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_engine.h"
#include "device/device_kind.h"
#include "offload/staging/rank_groups.h"
#include "pinned/pinned_arena.h"
#include "pinned/worker_pool.h"
#include "shard/flat_layout.h"
#include "shard/slots.h"
#include "shard/state_format.h"

namespace longshore {

// GradientSums: casts a gradient's chunks on their device and sums the squares of the cast values.
// One for each device; owned by the drain and used by its thread. On a GPU it has its own stream,
// which casts a chunk while the previous one is copied.

class GradientSums {
 public:
  // The largest chunk, and the number of buffers that chunks use in rotation.
  struct Chunks {
    int64_t elements = 0;
    int32_t buffers = 0;
  };
  // On the CPU a chunk fits a cache. On a GPU it is 16 MiB of bf16, so that its copy of 0.3 ms
  // hides the launch costs, and there are two buffers.
  static constexpr Chunks chunks_on(DeviceKind device) {
    return device == DeviceKind::kCpu ? Chunks{int64_t{1} << 20, 1} : Chunks{int64_t{1} << 23, 2};
  }

  virtual ~GradientSums() = default;
  // Writes bf16(values) to `bf16` (empty: no cast) and adds the squares of the result to the sum.
  // Both spans are device memory. Later work on the calling thread's stream finds `bf16` written.
  // `buffer` is the number of the staging buffer that holds `bf16`; add() first waits for the copy
  // of that buffer that copied() announced.
  virtual void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t buffer) = 0;
  // Announces that the copy of the buffer is queued on the calling thread's stream.
  virtual void copied(int32_t buffer) = 0;
  // Ends a parameter: the total adds sums of parameters, not of chunks.
  virtual void end_piece() = 0;
  // Returns the sum since the last call: chunks in order, then pieces.
  // HOST WAIT, on a GPU: the host needs the norm.
  virtual double take() = 0;
};

// Both sum in the order that kernels/gradient.h defines; the CPU's in parallel.
std::unique_ptr<GradientSums> make_cpu_gradient_sums(WorkerPool* pool);
// Throws ConfigError without CUDA.
std::unique_ptr<GradientSums> make_cuda_gradient_sums(int device);

// HostGradients: a rank's drained gradients in host memory until their updates, in one arena of the
// planned size. Owned by the engine; the D2H lane writes, the update lane reads.
//
// Each unit has its own slot. Where a unit is updated right after its drain, units instead use a
// ring of a few slots, each as large as the largest unit's gradient. The schedule assigns a ring
// slot to each drain, and the unit's update frees it.

struct HostGradientsOptions {
  DType dtype = DType::kBF16;  // drain dtype
  int32_t ring = 0;            // slots of the ring; 0: one slot for each unit
};

class HostGradients {
 public:
  // Allocates zeros. Uses `pool` to touch the pages and does not keep it.
  HostGradients(const std::vector<FlatLayout>& layouts, const HostGradientsOptions& options,
                bool register_with_gpus, WorkerPool& pool);

  // Returns the value that host_bytes() will have.
  static Bytes planned_bytes(const std::vector<FlatLayout>& layouts,
                             const HostGradientsOptions& options);

  DType dtype() const { return options_.dtype; }
  Bytes host_bytes() const { return arena_.size_bytes(); }
  // Owners of ring slots: claimed before the unit's drain, freed after its update.
  SlotOwners<HostGradientSlot>& ring() { return ring_; }
  // Returns the rank's part of the unit's gradient, its trainable segments end to end. In a ring
  // the unit must own a slot.
  std::span<std::byte> gradient(UnitId unit);
  // Returns one segment of gradient(unit).
  std::span<std::byte> segment(UnitId unit, Segment segment);

 private:
  struct Unit {
    Bytes begin = 0;  // offset of its own slot in the arena; unused in a ring
    Bytes bytes = 0;
    std::array<ByteRange, kSegments.size()> segments{};  // inside the gradient
  };

  HostGradientsOptions options_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  SlotOwners<HostGradientSlot> ring_;
};

// GradientDrain: moves reduced gradient shards from the device to host memory. It casts them to the
// drain dtype and sums the squares of the cast values; padding is neither copied nor summed. Owned
// by the engine; the D2H lane calls drain(), the engine's thread finish().
//
// The norm is summed in double in a fixed order: blocks inside each parameter's piece as
// kernels/gradient.h defines, then chunks, pieces and units in order. It does not depend on threads
// or on the drain order.
//
// Chunks use the staging buffers in rotation. A GPU has two buffers, so the next chunk is cast
// while the last one is copied.

// The global norm of a step's gradients.
struct GradNorm {
  double norm = 0.0;
  bool finite = true;
  std::optional<UnitId> first_non_finite;  // in forward order
};

// Computes the norm from every unit's sum of squares over all shards. Pure.
GradNorm norm_of(std::span<const double> unit_squares);

class GradientDrain {
 public:
  // All pointers must outlive the drain. `staging` is device memory of planned_staging_bytes().
  GradientDrain(HostGradients* host, CopyEngine* copies, const std::vector<FlatLayout>& layouts,
                Rank rank, std::span<std::byte> staging, DeviceKind device,
                std::unique_ptr<GradientSums> sums);
  // Makes the drain of the CPU device.
  GradientDrain(HostGradients* host, CopyEngine* copies, const std::vector<FlatLayout>& layouts,
                Rank rank, std::span<std::byte> staging, WorkerPool* pool);

  // Returns the device bytes that cast gradients need until they are copied; 0 without a cast.
  static Bytes planned_staging_bytes(const std::vector<FlatLayout>& layouts, DType drain,
                                     DeviceKind device);

  // Drains a unit, once per step, and returns the rank's sum of squares. `sums` is the trainable
  // front of the unit's flat parameter, fp32 on the device; the rank's parts of it must be final.
  double drain(UnitId unit, std::span<const float> sums);
  // Returns the rank's sum of squares by unit, 0 for units that were not drained since the last
  // finish(), and begins a new step.
  std::vector<double> finish();

 private:
  // One parameter's piece: its offsets in the flat parameter and in the trainable host shard.
  struct Piece {
    int64_t flat_begin = 0;
    int64_t host_begin = 0;
    int64_t elements = 0;
  };
  void drain_piece(UnitId unit, const Piece& piece, std::span<const float> sums);

  HostGradients* host_;
  CopyEngine* copies_;
  std::unique_ptr<GradientSums> sums_;
  GradientSums::Chunks chunks_;
  std::vector<std::span<std::byte>> staging_;  // by buffer; empty: no cast
  size_t next_buffer_ = 0;
  std::vector<std::vector<Piece>> pieces_;      // by unit
  std::vector<int64_t> flat_elements_;          // by unit: elements of its trainable front
  std::vector<std::optional<double>> squares_;  // by unit: set when drained in this step
};

// GradientReducer: sums a unit's gradients over ranks, once per unit and step: reduce-scatter in
// the shard group, then all-reduce of the rank's part over its replicas. Owned by the engine; the
// reduce lane calls it.

class GradientReducer {
 public:
  // `layouts` must outlive the reducer; `wire` is the dtype of the payload; `scratch` has
  // planned_scratch_bytes() of device memory.
  GradientReducer(const RankGroups& groups, const std::vector<FlatLayout>* layouts, DType wire,
                  std::span<std::byte> scratch);

  // Returns the device bytes that the largest unit's reduction needs in addition to its gradients.
  static Bytes planned_scratch_bytes(const std::vector<FlatLayout>& layouts,
                                     const ShardTopology& topology, DType wire);

  // Sums `sums`, the trainable front of the unit's flat parameter. Afterwards the rank's parts are
  // sums over all ranks and the other parts are unspecified. Blocks the reduce lane until then.
  void reduce(UnitId unit, std::span<float> sums);

 private:
  RankGroups groups_;
  const std::vector<FlatLayout>* layouts_;
  DType wire_;
  std::span<std::byte> scratch_;
};

}  // namespace longshore
