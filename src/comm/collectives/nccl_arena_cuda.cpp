// The build with CUDA. By default NCCL no longer registers plain cudaMalloc memory, but it
// registers its own allocations (driver virtual memory with handles that other ranks can open).
#include "comm/collectives/nccl_arena.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <optional>
#include <string>

#include "base/errors.h"
#include "device/cuda_check.h"

namespace longshore {
namespace {

class NcclArena final : public DeviceArena {
 public:
  NcclArena(Bytes bytes, int device) : device_(device), size_(static_cast<size_t>(bytes)) {
    if (bytes == 0) return;
    check_cuda(cudaSetDevice(device), "choose GPU " + std::to_string(device));
    void* memory = nullptr;
    const ncclResult_t result = ncclMemAlloc(&memory, size_);
    if (result != ncclSuccess) {
      throw OutOfMemoryError("device memory: NCCL found no " + format_bytes(bytes) + " on GPU " +
                             std::to_string(device) + " (" + ncclGetErrorString(result) + "); " +
                             format_bytes(cuda_free_bytes(device)) +
                             " are free there; lower offload.device_memory");
    }
    data_ = static_cast<std::byte*>(memory);
    noted_.emplace(std::span(data_, size_));
    check_cuda(cudaMemset(data_, 0, size_), "clear the plan's buffers");
    check_cuda(cudaDeviceSynchronize(), "clear the plan's buffers");
  }
  NcclArena(const NcclArena&) = delete;
  NcclArena& operator=(const NcclArena&) = delete;
  ~NcclArena() override {
    if (data_ == nullptr) return;
    cudaSetDevice(device_);
    ncclMemFree(data_);
  }
  std::span<std::byte> bytes() const override { return {data_, size_}; }

 private:
  int device_;
  std::byte* data_ = nullptr;
  size_t size_;
  std::optional<GpuBytes> noted_;
};

}  // namespace

std::unique_ptr<DeviceArena> make_nccl_arena(Bytes bytes, int device) {
  require_gpu(device);
  return std::make_unique<NcclArena>(bytes, device);
}

}  // namespace longshore
