// cuda_runtime: Longshore's interface to the CUDA runtime, the same with and without CUDA. Without
// a toolkit at build time or a GPU at run time there are no devices and nothing is registered.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"

namespace longshore {

// Reports a failed call of the CUDA runtime with the operation and CUDA's own text (exit code 1).
class CudaError : public Error {
 public:
  CudaError(const std::string& operation, const std::string& reason)
      : Error(ExitCode::kFailure, operation + ": " + reason) {}
};

struct CudaDevice {
  std::string name;
  Bytes memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int processors = 0;           // streaming multiprocessors
  std::string pci = {};         // PCI address, such as "0000:3b:00.0"
  int numa_node = -1;           // host node nearest to the GPU; -1 if unknown
  std::vector<int> peers = {};  // GPUs whose memory it can read directly
  bool maps_memory = true;      // has virtual memory management, which some virtual GPUs lack
};

// Returns the GPUs this process may use; empty without CUDA, driver or GPU. Makes no CUDA context.
std::vector<CudaDevice> cuda_devices();
// Throws ConfigError unless a GPU of that number exists.
void require_gpu(int device);
// Returns the GPU's compute capability, 86 for 8.6. Cheap; requires the GPU.
int compute_capability(int device);
// Returns the bytes that are free for a new allocation on the device. Makes a CUDA context there.
Bytes cuda_free_bytes(int device);

// Returns whether every GPU can register memory that this process has mapped read-only.
bool gpus_register_read_only();

// While it lives, the GPUs can copy from and to this host memory at full speed; the memory must
// outlive it. Does nothing without a GPU.
class HostRegistration {
 public:
  HostRegistration() = default;
  // The driver may refuse: WSL2 and some virtual machines let a GPU use only a part of the host's
  // memory. Copies then go through small registered buffers (device/bounced_copies.h). `read_only`
  // means that GPUs only copy from the memory; it may then be mapped read-only if
  // gpus_register_read_only().
  explicit HostRegistration(std::span<std::byte> memory, bool read_only = false);
  ~HostRegistration();
  HostRegistration(HostRegistration&& other) noexcept;
  HostRegistration& operator=(HostRegistration&& other) noexcept;

  bool registered() const { return memory_ != nullptr; }
  // Returns the driver's text if it refused, else an empty text.
  const std::string& refusal() const { return refusal_; }

 private:
  void* memory_ = nullptr;  // nullptr if nothing is registered
  std::string refusal_;
};

// Returns whether all of the memory is registered with the GPUs. Any thread.
bool registered_with_gpus(std::span<const std::byte> memory);

// cuda_driver: reports on NVIDIA's driver without a CUDA context. This header is the same with and
// without CUDA. Any thread.

// Returns the newest CUDA version that the driver supports, such as "13.0"; empty without a driver.
std::string cuda_driver_version();
// Returns CUDA's own text for why it can use no GPU. Empty if it can, if no GPU is present or
// visible to this process, or if this build has no CUDA.
std::string cuda_trouble();

}  // namespace longshore
