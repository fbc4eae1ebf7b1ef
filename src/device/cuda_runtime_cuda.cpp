// The build with CUDA.
#include <cuda_runtime_api.h>

#include <utility>

#include "device/cuda_runtime.h"

namespace longshore {
namespace {

void check(cudaError_t status, const char* operation) {
  if (status != cudaSuccess) throw CudaError(operation, cudaGetErrorString(status));
}

int device_count() {
  int count = 0;
  // Without a driver or a GPU the call fails: then there are none.
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace

bool built_with_cuda() {
  return true;
}

std::vector<CudaDevice> cuda_devices() {
  std::vector<CudaDevice> devices;
  for (int i = 0; i < device_count(); ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    devices.push_back({properties.name, static_cast<Bytes>(properties.totalGlobalMem),
                       properties.major, properties.minor});
  }
  return devices;
}

Bytes cuda_free_bytes(int device) {
  int before = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  check(cudaSetDevice(before), "cudaSetDevice");
  return static_cast<Bytes>(free_bytes);
}

HostRegistration::HostRegistration(std::span<std::byte> memory) {
  if (memory.empty() || device_count() == 0) return;
  // Portable: every GPU of the process may use it.
  const cudaError_t status =
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (status != cudaSuccess) {
    throw CudaError("cudaHostRegister of " + format_bytes(static_cast<Bytes>(memory.size())),
                    cudaGetErrorString(status));
  }
  memory_ = memory.data();
}

HostRegistration::~HostRegistration() {
  if (memory_ != nullptr) cudaHostUnregister(memory_);
}

HostRegistration::HostRegistration(HostRegistration&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)) {}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

}  // namespace longshore
