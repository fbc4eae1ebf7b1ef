// GradientDrain: moves reduced gradient shards from the device to host memory. It casts them to the
// drain dtype and sums the squares of the cast values; padding is neither copied nor summed. Owned
// by the engine; the D2H lane calls drain(), the engine's thread finish().
//
// The norm is summed in double in a fixed order: blocks of 4096 elements inside each parameter's
// piece, then blocks, pieces and units in order. It does not depend on threads or on the drain
// order.
//
// Chunks use the staging buffers in rotation. A GPU has two buffers, so the next chunk is cast
// while the last one is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_engine.h"
#include "device/device_kind.h"
#include "offload/staging/gradient_sums.h"
#include "offload/staging/host_gradients.h"
#include "pinned/worker_pool.h"

namespace longshore {

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

}  // namespace longshore
