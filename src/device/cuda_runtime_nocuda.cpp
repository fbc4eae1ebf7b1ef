// The CUDA runtime in the build without CUDA: there are no devices.
#include "device/cuda_runtime.h"

namespace longshore {

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

}  // namespace longshore
