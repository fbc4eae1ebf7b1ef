// Launcher: starts the ranks of one node as processes of this binary, serves the store they meet
// in, passes signals on, and ends all of them when one fails. Main thread; blocks until all ranks
// have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longshore {

struct LaunchOptions {
  int32_t ranks = 1;  // on this node; all nodes have the same number
  int32_t nodes = 1;
  int32_t node = 0;        // this one
  std::string rendezvous;  // "host:port" of node 0; empty with one node: any free port
  // Holds the run's secret, the same on all nodes; empty with one node: a secret is made.
  std::string secret_file;
  std::vector<std::string> command;  // of each rank, without the program's name
};

// CUDA_VISIBLE_DEVICES of a rank on a machine of which this process sees `gpus` GPUs: one GPU, the
// rank's in the user's order, so that no rank makes contexts on another's. `own` is the user's
// value, if there is one. Nothing where there are fewer GPUs than ranks: then ranks see what the
// launcher sees, and say what is missing.
std::optional<std::string> visible_gpu(const std::optional<std::string>& own, size_t gpus,
                                       int32_t ranks, int32_t local_rank);

// ConfigError for options that do not go together. Returns 0, or the exit code of the first rank
// that failed for a reason of its own (128 + signal where one ended it).
int launch_ranks(const LaunchOptions& options);

}  // namespace longshore
