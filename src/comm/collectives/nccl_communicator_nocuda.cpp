#include "base/errors.h"
#include "comm/collectives/nccl_communicator.h"

namespace longshore {

std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& /*options*/,
                                                     std::shared_ptr<Watchdog> /*watchdog*/,
                                                     const ShareFirst& /*share_first*/,
                                                     int32_t /*device_index*/) {
  throw ConfigError("dist.backend: this build has no CUDA and so no NCCL; use \"gloo\"");
}

}  // namespace longshore
