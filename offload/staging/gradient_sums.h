// GradientSums: what a drain computes of a gradient's chunks, where the gradient is: casts them and
// sums the squares of what is kept. One for each device, owned by the drain, used by its thread.
// The GPU's has a stream of its own beside that thread's: it casts a chunk while the one before is
// copied.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device_kind.h"
#include "pinned/worker_pool.h"

namespace longshore {

class GradientSums {
 public:
  // Elements of one chunk at most, and buffers of so many that chunks take turns in.
  struct Chunks {
    int64_t elements = 0;
    int32_t buffers = 0;
  };
  // On the CPU one chunk that a cache holds; on a GPU 16 MiB of bf16, so that a copy of 0.3 ms
  // covers what it costs to start it, and two of them.
  static constexpr Chunks chunks_on(DeviceKind device) {
    return device == DeviceKind::kCpu ? Chunks{int64_t{1} << 20, 1} : Chunks{int64_t{1} << 23, 2};
  }

  virtual ~GradientSums() = default;
  // Writes bf16(values) to `bf16` (empty: the values are kept as they are) and adds the squares of
  // what is kept to the sum. Both are the device's. What the calling thread's stream is given later
  // finds them written. `buffer`: whose bytes `bf16` are; they are written once the copy that
  // copied() told of is done.
  virtual void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t buffer) = 0;
  // The calling thread's stream was given the copy of the buffer.
  virtual void copied(int32_t buffer) = 0;
  // A parameter ends: sums of parameters are added, not their chunks.
  virtual void end_piece() = 0;
  // The sum since the last call: chunks in order, then pieces.
  // HOST WAIT, on a GPU: the norm is the host's.
  virtual double take() = 0;
};

// Blocks of 4096 elements, summed side by side, added in order.
std::unique_ptr<GradientSums> make_cpu_gradient_sums(WorkerPool* pool);
// Like kernels/gradient.h. ConfigError without CUDA.
std::unique_ptr<GradientSums> make_cuda_gradient_sums(int device);

}  // namespace longshore
