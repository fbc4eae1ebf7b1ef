// cuda_device: sets up a process before it computes on a GPU and puts LibTorch's GPU memory under
// the device's cap. The thread that builds the engine calls it before any tensor is on the GPU.
#pragma once

#include <memory>

#include "device/device_memory.h"

namespace longshore {

// Loads LibTorch's GPU kernels. LibTorch looks for them once in a process, and many uses of its CPU
// part make it look (torch::manual_seed, a backward). A program that computes on a GPU later calls
// this or prepare_cuda() before anything else of LibTorch. It needs no GPU and makes no context.
// Throws ConfigError without CUDA or the kernels, and if LibTorch was used before.
void load_gpu_kernels();

// Loads LibTorch's GPU kernels as load_gpu_kernels() does, makes its arithmetic repeatable
// (deterministic algorithms, cuBLAS with fixed workspaces, no TF32, no reduced-precision sums) and
// chooses the GPU. Throws ConfigError without CUDA, a GPU of that number or the kernels, and if
// LibTorch was used before.
void prepare_cuda(int device);

// Makes LibTorch's GPU allocator extend its segments instead of asking for blocks of fixed size, so
// that micro-batches of varying lengths leave no holes under the cap. Call it before the first GPU
// allocation. The GPU must be one that maps_memory.
void use_growing_segments();
// The end of a warning that begins with the name of a GPU that cannot map memory.
inline constexpr const char* kFixedSegments =
    "has no virtual memory management, as some virtual GPUs: LibTorch's memory cannot grow in "
    "place, so micro-batches of varying lengths may need more of it than the plan has";
// Frees the memory that cuBLAS keeps for each handle and stream; cuBLAS allocates it again when
// needed. Requires the loaded kernels; call it while no thread computes.
void clear_cublas_workspaces();
// Returns LibTorch's cached GPU memory and cuBLAS's workspaces to the GPUs. Otherwise memory that
// an earlier engine or probe no longer needs would leave no room for an arena. Call it while no
// thread computes.
void give_back_cached_memory() noexcept;

// While it lives, LibTorch's memory on the GPU is `memory`'s workspace: its caching allocator may
// hold `workspace_cap()` bytes. Going over throws OutOfMemoryError out of the LibTorch call and
// names the holders. Budgets must end in reverse order.
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
