// The build without CUDA: functions that need a GPU throw from require_gpu().
#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/cuda_device.h"
#include "device/cuda_runtime.h"
#include "device/device_memory.h"
#include "device/gpu_tensors.h"

namespace longshore {

std::unique_ptr<DeviceArena> make_cuda_arena(Bytes, int device) {
  require_gpu(device);
  return nullptr;
}

std::unique_ptr<CopyEngine> make_cuda_copy_engine(int device) {
  require_gpu(device);
  return nullptr;
}

bool on_gpu(const at::Tensor&) {
  return false;
}

at::Device gpu_tensors(int gpu) {
  return {at::kCUDA, static_cast<at::DeviceIndex>(gpu)};
}

void load_gpu_kernels() {
  throw ConfigError("device.kind: this program was built without CUDA; set device.kind = \"cpu\"");
}

void prepare_cuda(int device) {
  require_gpu(device);
}

void use_growing_segments() {}
void clear_cublas_workspaces() {}
void give_back_cached_memory() noexcept {}

CudaWorkspaceBudget::CudaWorkspaceBudget(const DeviceMemory&, int device) : device_(device) {
  require_gpu(device_);
}
CudaWorkspaceBudget::~CudaWorkspaceBudget() {
  static_cast<void>(device_);
}

}  // namespace longshore
