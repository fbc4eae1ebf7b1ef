// GradientSums: what a drain computes of a gradient's chunks, where the gradient is: casts them and
// sums the squares of what is kept. One for each device, owned by the drain, used by its thread;
// the GPU's issues to that thread's CUDA stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "pinned/worker_pool.h"

namespace longshore {

class GradientSums {
 public:
  // Elements of one chunk at most: long enough for a copy to run at full speed.
  static constexpr int64_t kChunkElements = int64_t{1} << 20;

  virtual ~GradientSums() = default;
  // Writes bf16(values) to `bf16` (empty: the values are kept as they are) and adds the squares of
  // what is kept to the sum. Both are the device's.
  virtual void add(std::span<const float> values, std::span<uint16_t> bf16) = 0;
  // The sum since the last call, chunk by chunk in order.
  // HOST WAIT, on a GPU: the norm is the host's.
  virtual double take() = 0;
};

// Blocks of 4096 elements, summed side by side, added in order.
std::unique_ptr<GradientSums> make_cpu_gradient_sums(WorkerPool* pool);
// Like kernels/gradient.h. ConfigError without CUDA.
std::unique_ptr<GradientSums> make_cuda_gradient_sums(int device);

}  // namespace longshore
