#include "comm/collectives/nccl_communicator.h"

#include "base/errors.h"
#include "device/cuda_runtime.h"

namespace longshore {

std::string nccl_version() {
  return "";
}

std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& /*options*/,
                                                     std::shared_ptr<Watchdog> /*watchdog*/,
                                                     const ShareFirst& /*share_first*/,
                                                     int32_t /*device_index*/) {
  throw ConfigError("dist.backend: this build has no CUDA and so no NCCL; use \"gloo\"");
}

// The build without CUDA.

std::unique_ptr<DeviceArena> make_nccl_arena(Bytes, int device) {
  require_gpu(device);
  return nullptr;
}

}  // namespace longshore
