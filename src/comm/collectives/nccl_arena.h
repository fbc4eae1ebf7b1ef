// make_nccl_arena: a GPU's memory that NCCL can register with its transports (ncclMemAlloc), for
// the arena that slots and gradients are cut from where there are several ranks. Whoever builds the
// device memory calls it.
#pragma once

#include <memory>

#include "device/device_arena.h"

namespace longshore {

// ConfigError without CUDA, OutOfMemoryError when the GPU has not as much.
std::unique_ptr<DeviceArena> make_nccl_arena(Bytes bytes, int device);

}  // namespace longshore
