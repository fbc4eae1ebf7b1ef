// The collectives of a group over NCCL, only for memory of a GPU arena. Host
// memory, scalars included, is refused with a CheckFailure. The caller that got it from a World
// owns it; one thread at a time calls it. Its arenas are memory that NCCL can register.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/collectives/group_communicator.h"
#include "comm/watchdog/watchdog.h"
#include "device/device_memory.h"

namespace longshore {

// Broadcasts the first member's string to all members of the group.
using ShareFirst = std::function<std::string(const std::string& mine)>;

// Throws ConfigError in a build without CUDA.
std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& options,
                                                     std::shared_ptr<Watchdog> watchdog,
                                                     const ShareFirst& share_first,
                                                     int32_t device_index);

// make_nccl_arena: GPU memory that NCCL can register with its transports (ncclMemAlloc). With
// several ranks it backs the arena of slots and gradients. The builder of the device memory calls
// it and owns the arena.

// Throws ConfigError without CUDA, OutOfMemoryError if the GPU has too little memory.
std::unique_ptr<DeviceArena> make_nccl_arena(Bytes bytes, int device);

}  // namespace longshore
