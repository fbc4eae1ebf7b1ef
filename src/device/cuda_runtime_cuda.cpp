// The CUDA runtime in the build with CUDA.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <fstream>
#include <utility>

#include "device/cuda_check.h"
#include "device/cuda_runtime.h"

namespace longshore {
namespace {

int device_count() {
  int count = 0;
  // Without a driver or a GPU the call fails, which means no devices.
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string pci_of(int device) {
  std::array<char, 32> text{};
  check_cuda(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device),
             "cudaDeviceGetPCIBusId");
  std::string id(text.data());
  for (char& letter : id) letter = static_cast<char>(std::tolower(letter));  // sysfs has lower case
  return id;
}

int numa_node_of(const std::string& pci) {
  std::ifstream file("/sys/bus/pci/devices/" + pci + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

std::vector<int> peers_of(int device, int count) {
  std::vector<int> peers;
  for (int other = 0; other < count; ++other) {
    int reachable = 0;
    if (other == device) continue;
    check_cuda(cudaDeviceCanAccessPeer(&reachable, device, other), "cudaDeviceCanAccessPeer");
    if (reachable != 0) peers.push_back(other);
  }
  return peers;
}

// Asks the driver, because the runtime has no name for this attribute. True if it does not answer.
bool maps_memory(int device) {
  void* call = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kVersion = 12000;
  if (cudaGetDriverEntryPointByVersion("cuDeviceGetAttribute", &call, kVersion, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return true;
  }
  int supported = 0;
  const auto ask = reinterpret_cast<decltype(&cuDeviceGetAttribute)>(call);
  const CUresult answer =
      ask(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  return answer != CUDA_SUCCESS || supported != 0;
}

}  // namespace

std::vector<CudaDevice> cuda_devices() {
  std::vector<CudaDevice> devices;
  const int count = device_count();
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    const std::string pci = pci_of(i);
    devices.push_back({properties.name, static_cast<Bytes>(properties.totalGlobalMem),
                       properties.major, properties.minor, properties.multiProcessorCount, pci,
                       numa_node_of(pci), peers_of(i, count), maps_memory(i)});
  }
  return devices;
}

std::string cuda_driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string cuda_trouble() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "";
  return cudaGetErrorString(status);
}

void require_gpu(int device) {
  const int count = device_count();
  if (device >= 0 && device < count) return;
  throw ConfigError("device.kind: there is no GPU " + std::to_string(device) + " (" +
                    std::to_string(count) + " are visible); set device.kind = \"cpu\"");
}

int compute_capability(int device) {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

Bytes cuda_free_bytes(int device) {
  int before = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_cuda(cudaGetDevice(&before), "cudaGetDevice");
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  check_cuda(cudaSetDevice(before), "cudaSetDevice");
  return static_cast<Bytes>(free_bytes);
}

bool gpus_register_read_only() {
  const int count = device_count();
  for (int device = 0; device < count; ++device) {
    int supported = 0;
    check_cuda(cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, device),
               "cudaDeviceGetAttribute");
    if (supported == 0) return false;
  }
  return true;
}

HostRegistration::HostRegistration(std::span<std::byte> memory, bool read_only) {
  if (memory.empty() || device_count() == 0) return;
  // Portable memory is registered for every GPU of the process.
  const unsigned flags = cudaHostRegisterPortable |
                         (read_only && gpus_register_read_only() ? cudaHostRegisterReadOnly : 0u);
  const cudaError_t status = cudaHostRegister(memory.data(), memory.size(), flags);
  // Memory that is registered twice is a mistake of the caller's, not a limit of the system.
  if (status == cudaErrorHostMemoryAlreadyRegistered) check_cuda(status, "cudaHostRegister");
  if (status != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the caller reports
    refusal_ = cudaGetErrorString(status);
    return;
  }
  memory_ = memory.data();
}

bool registered_with_gpus(std::span<const std::byte> memory) {
  if (memory.empty() || device_count() == 0) return true;
  for (const std::byte* place : {&memory.front(), &memory.back()}) {
    cudaPointerAttributes found{};
    check_cuda(cudaPointerGetAttributes(&found, place), "cudaPointerGetAttributes");
    if (found.type != cudaMemoryTypeHost) return false;
  }
  return true;
}

HostRegistration::~HostRegistration() {
  if (memory_ != nullptr) cudaHostUnregister(memory_);
}

HostRegistration::HostRegistration(HostRegistration&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), refusal_(std::move(other.refusal_)) {}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(refusal_, other.refusal_);
  return *this;
}

}  // namespace longshore
