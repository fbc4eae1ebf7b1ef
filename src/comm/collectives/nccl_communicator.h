// NcclCommunicator: the collectives of a group over NCCL, for bytes of a GPU's arena alone: host
// memory, scalars included, is refused with a CheckFailure. Owned by whoever asked a World for it;
// one thread at a time calls it.
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
