// GradientDrain: takes reduced gradient shards down from the device: casts them to the drain dtype,
// sums the squares of what is kept, and copies it to host memory. Owned by the engine; the D2H
// lane calls drain(), the engine's thread finish(). Padding is neither copied nor summed.
//
// The norm is summed in double: blocks of 4096 elements in a fixed order inside each parameter's
// piece, blocks, pieces and units in order. It does not depend on threads or on the order of
// draining.
//
// Chunks take turns in the staging buffers. A GPU has two: the next chunk is cast while the last
// one is copied.
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

// The norm of all gradients of a step.
struct GradNorm {
  double norm = 0.0;
  bool finite = true;
  std::optional<UnitId> first_non_finite;  // in forward order
};

// From the sums of squares of every unit, all shards together. Pure.
GradNorm norm_of(std::span<const double> unit_squares);

class GradientDrain {
 public:
  // All pointers must outlive the drain. `staging`: device memory of planned_staging_bytes().
  GradientDrain(HostGradients* host, CopyEngine* copies, const std::vector<FlatLayout>& layouts,
                Rank rank, std::span<std::byte> staging, DeviceKind device,
                std::unique_ptr<GradientSums> sums);
  // On the CPU device.
  GradientDrain(HostGradients* host, CopyEngine* copies, const std::vector<FlatLayout>& layouts,
                Rank rank, std::span<std::byte> staging, WorkerPool* pool);

  // Where cast gradients wait for the copy; 0 when they are drained as they are.
  static Bytes planned_staging_bytes(const std::vector<FlatLayout>& layouts, DType drain,
                                     DeviceKind device);

  // `sums`: the trainable front of the unit's flat parameter, fp32 on the device, of which the
  // rank's parts are final. A unit is drained once a step. Returns the rank's sum of squares.
  double drain(UnitId unit, std::span<const float> sums);
  // The rank's sum of squares of every unit, 0 for units that were not drained since the last
  // finish(); begins a new step.
  std::vector<double> finish();

 private:
  // A parameter's piece, by its place in the flat parameter and in the trainable shard in host
  // memory.
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
  std::vector<std::span<std::byte>> staging_;  // by buffer; empty: drained as they are
  size_t next_buffer_ = 0;
  std::vector<std::vector<Piece>> pieces_;      // by unit
  std::vector<int64_t> flat_elements_;          // by unit: of the trainable front
  std::vector<std::optional<double>> squares_;  // by unit: drained in this step
};

}  // namespace longshore
