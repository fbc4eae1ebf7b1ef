// Starts the ranks of one node as processes of this binary, serves their store, forwards
// signals, and ends all ranks when one fails. Main thread; blocks until all ranks have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

struct LaunchOptions {
  int32_t ranks = 1;  // on this node; all nodes have the same number
  int32_t nodes = 1;
  int32_t node = 0;        // index of this node
  std::string rendezvous;  // "host:port" of node 0; empty with one node: any free port
  // The file with the run's secret, equal on all nodes. If empty (one node), it is generated.
  std::string secret_file;
  std::vector<std::string> command;  // arguments of each rank, without the program's name
};

// Returns the CUDA_VISIBLE_DEVICES of a rank if this process sees `gpus` GPUs: the rank's GPU in
// the user's order, so that no rank makes contexts on another's GPU. `own` is the user's value, if
// set. Returns nullopt if there are fewer GPUs than ranks; ranks then see the launcher's GPUs and
// report what is missing.
std::optional<std::string> visible_gpu(const std::optional<std::string>& own, size_t gpus,
                                       int32_t ranks, int32_t local_rank);

// Returns the free bytes of the file system at `path`, where NCCL's ranks share memory; 0 if there
// is none.
Bytes free_shared_memory(const std::string& path = "/dev/shm");
// Returns an error text if `room` is too little for a machine's ranks with a GPU each, for which
// NCCL would end with "unhandled system error"; empty if it suffices.
std::string lack_of_shared_memory(Bytes room, size_t ranks);
inline constexpr const char* kMoreSharedMemory =
    "in a container, docker run --shm-size=1g or --ipc=host; else mount -o remount,size=1g "
    "/dev/shm, as root";

// Throws ConfigError for options that do not go together. Returns 0, or the exit code of the first
// rank that failed for its own reason (128 + signal if a signal ended it).
int launch_ranks(const LaunchOptions& options);

}  // namespace longshore
