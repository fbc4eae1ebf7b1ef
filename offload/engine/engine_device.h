// EngineDevice: the device that a plan names, the CPU device or one GPU. It owns the device's
// memory, its cap on LibTorch's temporaries and its copies, and prepares the threads of lanes; the
// code above it is the same for both. Owned by the engine; made and destroyed by its thread.
//
// On a GPU a lane is a thread with its own CUDA stream, which it waits for at the end of every
// operation. A finished operation is therefore finished on the GPU too, and schedule, leases,
// failures and times have the same meaning as on the CPU, at the cost of one wait (some 20 us) per
// operation.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/copy_engine.h"
#include "device/counting_allocator.h"
#include "device/cuda_device.h"
#include "device/device_kind.h"
#include "device/device_memory.h"
#include "offload/plan/tier_plan.h"
#include "offload/staging/gradient_drain.h"

namespace longshore {

class EngineDevice {
 public:
  struct Options {
    DeviceKind kind = DeviceKind::kCpu;
    int gpu = 0;              // ordinal, where kind is kCuda
    bool collective = false;  // NCCL moves the arena's bytes
    Bytes cap = 0;
    Bytes owned = 0;
    Bytes copy_buffers = 0;  // at most, of copies of host memory that is not registered
  };
  // `cpu_copies` is for the CPU device. Throws ConfigError if the GPU does not exist,
  // OutOfMemoryError if it lacks the owned bytes.
  EngineDevice(const Options& options, std::unique_ptr<CopyEngine> cpu_copies);
  EngineDevice(const EngineDevice&) = delete;
  EngineDevice& operator=(const EngineDevice&) = delete;
  // All tensors on the device must be destroyed before.
  ~EngineDevice();

  bool cuda() const { return options_.kind == DeviceKind::kCuda; }
  at::Device torch() const;
  DeviceMemory& memory() { return *memory_; }
  const DeviceMemory& memory() const { return *memory_; }
  CopyEngine& copies() { return *copies_; }
  std::unique_ptr<GradientSums> make_gradient_sums(WorkerPool* pool) const;

  // Prepares the thread of a lane that issues to the device. `urgent`: its stream precedes kernels.
  void adopt_lane(bool urgent) const;
  // HOST WAIT, on a GPU: ends an operation, on its lane's thread. Throws CudaError, naming `what`,
  // if the work that it issued failed.
  void finish(const std::string& what) const;

 private:
  Options options_;
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<WorkspaceBudget> cpu_budget_;
  std::optional<CudaWorkspaceBudget> cuda_budget_;
  std::unique_ptr<CopyEngine> copies_;
};

// PlannedBuffers: the plan's buffers, carved from the device's arena in the order of the plan.
// Owned by the engine; its thread hands them to the engine's parts.

class PlannedBuffers {
 public:
  // Both must outlive the buffers.
  PlannedBuffers(const TierPlan* plan, DeviceMemory* memory);

  // Returns the buffer, empty if the plan has none of that key. Each is taken once.
  std::span<std::byte> take(BufferKey key);
  // Splits the buffer by micro-batch; the parts are empty if the plan has no such buffer.
  std::vector<std::span<std::byte>> take_parts(BufferKey key);
  // Returns the memory for the states of sequences, which may lie in buffers of gradients.
  std::span<std::byte> take_states();
  // Throws CheckFailure unless every buffer was taken.
  void check_taken() const;

 private:
  const TierPlan& plan_;
  std::vector<std::span<std::byte>> buffers_;  // in the order of the plan
  std::set<size_t> taken_;                     // their places in the plan
};

}  // namespace longshore
