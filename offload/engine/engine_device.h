// EngineDevice: what the engine computes on, as the plan says: the CPU device or one GPU. It owns
// the device's memory, its cap on LibTorch's temporaries and its copies, and prepares the threads
// of lanes. Everything above it is the same code for both. Owned by the engine, made and destroyed
// by its thread.
//
// On a GPU a lane is a thread with a CUDA stream of its own, and waits for that stream at the end
// of every operation. So an operation that is done is done on the GPU too: schedule, leases,
// failures and times mean what they mean on the CPU, at the price of one wait (some 20 us) for each
// operation.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>

#include "device/copy_engine.h"
#include "device/counting_allocator.h"
#include "device/cuda_device.h"
#include "device/device_kind.h"
#include "device/device_memory.h"
#include "offload/staging/gradient_sums.h"

namespace longshore {

class EngineDevice {
 public:
  struct Options {
    DeviceKind kind = DeviceKind::kCpu;
    int gpu = 0;              // of this rank, where kind is kCuda
    bool collective = false;  // NCCL moves the arena's bytes
    Bytes cap = 0;
    Bytes owned = 0;
  };
  // `cpu_copies` are the CPU device's. ConfigError where there is no such GPU, OutOfMemoryError
  // where it has not the owned bytes.
  EngineDevice(const Options& options, std::unique_ptr<CopyEngine> cpu_copies);
  EngineDevice(const EngineDevice&) = delete;
  EngineDevice& operator=(const EngineDevice&) = delete;
  // Tensors on the device are gone before.
  ~EngineDevice();

  bool cuda() const { return options_.kind == DeviceKind::kCuda; }
  at::Device torch() const;
  DeviceMemory& memory() { return *memory_; }
  const DeviceMemory& memory() const { return *memory_; }
  CopyEngine& copies() { return *copies_; }
  std::unique_ptr<GradientSums> make_gradient_sums(WorkerPool* pool) const;

  // First on the thread of a lane that issues to the device. `urgent`: copies, before kernels.
  void adopt_lane(bool urgent) const;
  // HOST WAIT, on a GPU: at the end of an operation, on its lane's thread. CudaError, naming
  // `what`, when what it issued failed.
  void finish(const std::string& what) const;

 private:
  Options options_;
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<WorkspaceBudget> cpu_budget_;
  std::optional<CudaWorkspaceBudget> cuda_budget_;
  std::unique_ptr<CopyEngine> copies_;
};

}  // namespace longshore
