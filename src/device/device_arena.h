// DeviceArena: where a DeviceMemory's owned bytes are: host memory for the CPU device, a GPU's
// memory else. Owned by the DeviceMemory that is cut from it. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/bytes.h"

namespace longshore {

class DeviceArena {
 public:
  virtual ~DeviceArena() = default;
  // Zero-filled when made. Host code may touch them on the CPU device only.
  virtual std::span<std::byte> bytes() const = 0;
};

// An arena's bytes on a GPU, noted for the process while this lives, so that whoever hands memory
// to the GPU's collectives can be told from the host's. Owned by the arena, beside its memory.
class GpuBytes {
 public:
  GpuBytes() = default;  // none
  explicit GpuBytes(std::span<const std::byte> bytes);
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  ~GpuBytes();

 private:
  const std::byte* begin_ = nullptr;
};
// Whether all of `bytes` are in one arena on a GPU; no bytes are. Any thread.
bool in_gpu_arena(std::span<const std::byte> bytes);

// OutOfMemoryError when the system refuses.
std::unique_ptr<DeviceArena> make_host_arena(Bytes bytes);
// Plain memory of one GPU (cudaMalloc). ConfigError without CUDA, OutOfMemoryError when the GPU has
// not as much. Ranks that gather with NCCL take make_nccl_arena instead
// (comm/collectives/nccl_arena.h).
std::unique_ptr<DeviceArena> make_cuda_arena(Bytes bytes, int device);

}  // namespace longshore
