// What a process does once before it computes on a GPU, and LibTorch's GPU memory under the
// device's cap. Called by the thread that builds the engine, before any tensor on the GPU.
#pragma once

#include <memory>

#include "device/device_memory.h"

namespace longshore {

// Loads LibTorch's GPU kernels, makes its arithmetic repeatable (deterministic algorithms, cuBLAS
// with fixed workspaces, no TF32, no reduced-precision sums) and chooses the GPU. ConfigError
// without CUDA, a GPU of that number, or the kernels.
void prepare_cuda(int device);

// LibTorch's allocator on GPUs maps memory behind what it has, instead of asking for blocks of
// fixed size: micro-batches of ever other lengths leave no holes under the cap. Before its first
// allocation.
void use_growing_segments();
// Lets go of the memory that cuBLAS has for each of its handles and streams; it takes what it needs
// again. For the kernels' library that was loaded; while no thread computes.
void clear_cublas_workspaces();
// Gives back to the GPUs what LibTorch keeps of them for later tensors, and cuBLAS's workspaces:
// else an arena finds the memory taken that an earlier engine or probe no longer needs. While no
// thread computes.
void give_back_cached_memory() noexcept;

// While it lives, LibTorch's memory on the GPU is `memory`'s workspace: its caching allocator may
// hold `workspace_cap()` bytes, and going over throws OutOfMemoryError, with who held what, out of
// the LibTorch call. Budgets end in reverse order.
class CudaWorkspaceBudget {
 public:
  CudaWorkspaceBudget(const DeviceMemory& memory, int device);
  CudaWorkspaceBudget(const CudaWorkspaceBudget&) = delete;
  CudaWorkspaceBudget& operator=(const CudaWorkspaceBudget&) = delete;
  ~CudaWorkspaceBudget();

 private:
  int device_;
  std::shared_ptr<WorkspaceMeter> before_;
};

}  // namespace longshore
