// make_nccl_arena: GPU memory that NCCL can register with its transports (ncclMemAlloc). With
// several ranks it backs the arena of slots and gradients. The builder of the device memory calls
// it and owns the arena.
#pragma once

#include <memory>

#include "device/device_arena.h"

namespace longshore {

// Throws ConfigError without CUDA, OutOfMemoryError if the GPU has too little memory.
std::unique_ptr<DeviceArena> make_nccl_arena(Bytes bytes, int device);

}  // namespace longshore
