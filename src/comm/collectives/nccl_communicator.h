// NcclCommunicator: the collectives of a group over NCCL, for buffers of a GPU. Owned by whoever
// asked a World for it; that thread calls it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/collectives/group_communicator.h"
#include "comm/watchdog/watchdog.h"

namespace longshore {

// Gives every member of the group what the first one passes.
using ShareFirst = std::function<std::string(const std::string& mine)>;

// ConfigError in a build without CUDA.
std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& options,
                                                     std::shared_ptr<Watchdog> watchdog,
                                                     const ShareFirst& share_first,
                                                     int32_t device_index);

}  // namespace longshore
