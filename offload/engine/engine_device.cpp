#include "offload/engine/engine_device.h"

#include <utility>

#include "comm/collectives/nccl_communicator.h"
#include "device/compute_threads.h"
#include "device/cuda_stream.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

std::unique_ptr<DeviceMemory> make_memory(const EngineDevice::Options& options) {
  if (options.kind == DeviceKind::kCpu) {
    return std::make_unique<DeviceMemory>(options.cap, options.owned);
  }
  // This precedes all other use of the GPU.
  prepare_cuda(options.gpu);
  give_back_cached_memory();  // of tensors outside of any engine
  return std::make_unique<DeviceMemory>(
      options.cap, options.collective ? make_nccl_arena(options.owned, options.gpu)
                                      : make_cuda_arena(options.owned, options.gpu));
}

}  // namespace

EngineDevice::EngineDevice(const Options& options, std::unique_ptr<CopyEngine> cpu_copies)
    : options_(options), memory_(make_memory(options)), copies_(std::move(cpu_copies)) {
  if (!cuda()) {
    cpu_budget_.emplace(*memory_);
    return;
  }
  cuda_budget_.emplace(*memory_, options.gpu);
  copies_ = make_cuda_copy_engine(options.gpu);
}

EngineDevice::~EngineDevice() {
  if (!cuda()) return;
  cuda_budget_.reset();
  give_back_cached_memory();
}

at::Device EngineDevice::torch() const {
  return cuda() ? gpu_tensors(options_.gpu) : at::Device(at::kCPU);
}

std::unique_ptr<GradientSums> EngineDevice::make_gradient_sums(WorkerPool* pool) const {
  return cuda() ? make_cuda_gradient_sums(options_.gpu) : make_cpu_gradient_sums(pool);
}

void EngineDevice::adopt_lane(bool urgent) const {
  adopt_compute_threads();
  if (cuda()) {
    adopt_cuda_stream(options_.gpu, urgent ? StreamPriority::kHigh : StreamPriority::kNormal);
  }
}

void EngineDevice::finish(const std::string& what) const {
  if (cuda()) finish_cuda_work(options_.gpu, what);
}

}  // namespace longshore
