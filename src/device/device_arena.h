// DeviceArena: the memory behind a DeviceMemory's owned bytes: host memory on the CPU device, else
// GPU memory. Owned by the DeviceMemory that is carved from it. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/bytes.h"

namespace longshore {

class DeviceArena {
 public:
  virtual ~DeviceArena() = default;
  // The bytes are zero-filled when made. Host code may access them on the CPU device only.
  virtual std::span<std::byte> bytes() const = 0;
};

// Records an arena's GPU bytes for the process while it lives, so that code can tell GPU memory
// from host memory before a GPU collective. The arena owns it.
class GpuBytes {
 public:
  GpuBytes() = default;  // records nothing
  explicit GpuBytes(std::span<const std::byte> bytes);
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  ~GpuBytes();

 private:
  const std::byte* begin_ = nullptr;
};
// Returns whether all of `bytes` lie in one GPU arena; true for an empty span. Any thread.
bool in_gpu_arena(std::span<const std::byte> bytes);

// Makes host memory. Throws OutOfMemoryError if the system refuses.
std::unique_ptr<DeviceArena> make_host_arena(Bytes bytes);
// Makes plain memory of one GPU (cudaMalloc). Throws ConfigError without CUDA, OutOfMemoryError if
// the GPU refuses. Ranks that gather with NCCL use make_nccl_arena instead
// (comm/collectives/nccl_arena.h).
std::unique_ptr<DeviceArena> make_cuda_arena(Bytes bytes, int device);

}  // namespace longshore
