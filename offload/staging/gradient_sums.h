// GradientSums: casts a gradient's chunks on their device and sums the squares of the cast values.
// One for each device; owned by the drain and used by its thread. On a GPU it has its own stream,
// which casts a chunk while the previous one is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device_kind.h"
#include "pinned/worker_pool.h"

namespace longshore {

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
  // `buffer` is the staging buffer of `bf16`; add() waits for its copy that copied() announced.
  virtual void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t buffer) = 0;
  // Announces that the copy of the buffer is queued on the calling thread's stream.
  virtual void copied(int32_t buffer) = 0;
  // Ends a parameter: the total adds sums of parameters, not of chunks.
  virtual void end_piece() = 0;
  // Returns the sum since the last call: chunks in order, then pieces.
  // HOST WAIT, on a GPU: the host needs the norm.
  virtual double take() = 0;
};

// Sums blocks of 4096 elements in parallel and adds them in order.
std::unique_ptr<GradientSums> make_cpu_gradient_sums(WorkerPool* pool);
// Sums as kernels/gradient.h defines. Throws ConfigError without CUDA.
std::unique_ptr<GradientSums> make_cuda_gradient_sums(int device);

}  // namespace longshore
