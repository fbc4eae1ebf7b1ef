// NcclCommunicator: the collectives of a group over NCCL, only for memory of a GPU arena. Host
// memory, scalars included, is refused with a CheckFailure. The caller that got it from a World
// owns it; one thread at a time calls it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/collectives/group_communicator.h"
#include "comm/watchdog/watchdog.h"

namespace longshore {

// Broadcasts the first member's string to all members of the group.
using ShareFirst = std::function<std::string(const std::string& mine)>;

// Throws ConfigError in a build without CUDA.
std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& options,
                                                     std::shared_ptr<Watchdog> watchdog,
                                                     const ShareFirst& share_first,
                                                     int32_t device_index);

}  // namespace longshore
