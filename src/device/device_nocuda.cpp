// The build without CUDA: functions that need a GPU throw from require_gpu().

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/copy_speed.h"
#include "device/cuda_device.h"
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"
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

// There are no devices.

std::vector<CudaDevice> cuda_devices() {
  return {};
}

std::string cuda_driver_version() {
  return "";
}

std::string cuda_trouble() {
  return "";
}

void require_gpu(int device) {
  throw ConfigError("device.kind: this build has no CUDA, so there is no GPU " +
                    std::to_string(device) + "; set device.kind = \"cpu\"");
}

int compute_capability(int device) {
  LONGSHORE_CHECK(false) << "there is no GPU " << device;
  return 0;
}

Bytes cuda_free_bytes(int device) {
  LONGSHORE_CHECK(false) << "there is no GPU " << device;
  return 0;
}

bool gpus_register_read_only() {
  return true;
}

HostRegistration::HostRegistration(std::span<std::byte>, bool) {}
HostRegistration::~HostRegistration() = default;
HostRegistration::HostRegistration(HostRegistration&&) noexcept {}
HostRegistration& HostRegistration::operator=(HostRegistration&&) noexcept {
  return *this;
}

bool registered_with_gpus(std::span<const std::byte>) {
  return true;
}

// There are no streams.

struct CudaSideStream::State {};

CudaSideStream::CudaSideStream(int device, int32_t) {
  require_gpu(device);
}
CudaSideStream::~CudaSideStream() = default;
CUstream_st* CudaSideStream::handle() const {
  return nullptr;
}
void CudaSideStream::mark(int32_t) {}
void CudaSideStream::wait_for(int32_t) {}
void CudaSideStream::join() {}

struct CudaMark::State {};

CudaMark::CudaMark(int device) {
  require_gpu(device);
}
CudaMark::~CudaMark() = default;
void CudaMark::record() {}
void CudaMark::wait() const {}

void adopt_cuda_stream(int device, StreamPriority) {
  require_gpu(device);
}

void finish_cuda_work(int, const std::string&) {}

CUstream_st* current_cuda_stream(int) {
  return nullptr;
}

std::vector<CopySpeed> measure_copy_speeds(int device, const std::vector<Bytes>&, int) {
  require_gpu(device);
  return {};
}

std::pair<double, double> measure_copies_both_ways(int device, Bytes, int) {
  require_gpu(device);
  return {};
}

}  // namespace longshore
