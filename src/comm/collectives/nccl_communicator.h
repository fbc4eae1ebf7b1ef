// The collectives of a group over NCCL, only for memory of a GPU arena. Host memory, scalars
// included, is refused with a CheckFailure. The caller that got it from a World owns it; one thread
// at a time calls it. Its arenas are memory that NCCL can register.
//
// [Note: NCCL's order of sums] NCCL chooses how it adds by the machine's topology and message size.
// One of its algorithms, NVLS, adds in the switch and gives different bits in every run. With one
// algorithm and one protocol the order of a sum is that of the ring, which depends on the GPUs of
// the run.
#pragma once

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "comm/collectives/group_communicator.h"
#include "comm/watchdog/watchdog.h"
#include "device/device_memory.h"

namespace longshore {

// NCCL's settings under which sums repeat ([Note: NCCL's order of sums]). They replace variables
// that the user has set, because the environment must not change a run's results.
struct NcclSetting {
  const char* name;
  const char* value;
};
inline constexpr std::array<NcclSetting, 3> kNcclSettings = {
    {{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"}}};
// Call it before the process has threads, on all ranks; NCCL reads its settings at its first call.
inline void fix_nccl_settings() {
  for (const NcclSetting& setting : kNcclSettings) ::setenv(setting.name, setting.value, 1);
}

// Returns the version of the NCCL library, such as "2.28.9"; empty without CUDA.
std::string nccl_version();

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
