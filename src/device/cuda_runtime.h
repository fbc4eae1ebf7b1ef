// What Longshore asks of the CUDA runtime. The same header with and without CUDA: without a toolkit
// at build time, or without a GPU at run time, there are no devices and nothing is registered.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"

namespace longshore {

// A call of the CUDA runtime failed; names the operation and CUDA's own text (exit 1).
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
  std::string pci = {};         // "0000:3b:00.0"
  int numa_node = -1;           // of the host, nearest to the GPU; -1: not known
  std::vector<int> peers = {};  // GPUs whose memory it reads directly
};

// The GPUs this process may use; empty without CUDA, driver or GPU. Makes no CUDA context.
std::vector<CudaDevice> cuda_devices();
// ConfigError unless there is a GPU of that number.
void require_gpu(int device);
// Bytes a new allocation on the device could have now. Makes a context there.
Bytes cuda_free_bytes(int device);

// Whether every GPU may register memory that this process has mapped to read only.
bool gpus_register_read_only();

// Host memory that the GPUs may copy from and to at full speed, for as long as this lives; the
// memory must outlive it. Does nothing where there is no GPU.
class HostRegistration {
 public:
  HostRegistration() = default;
  // Throws CudaError when there is a GPU and it refuses.
  // `read_only`: copies come from the memory alone, which may be mapped so where
  // gpus_register_read_only().
  explicit HostRegistration(std::span<std::byte> memory, bool read_only = false);
  ~HostRegistration();
  HostRegistration(HostRegistration&& other) noexcept;
  HostRegistration& operator=(HostRegistration&& other) noexcept;

  bool registered() const { return memory_ != nullptr; }

 private:
  void* memory_ = nullptr;  // nullptr: nothing is registered
};

}  // namespace longshore
