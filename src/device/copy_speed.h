// How fast bytes cross between the host's arena and a GPU when a lane of the engine copies them,
// beside the best that plain cudaMemcpyAsync gives: memory of cudaHostAlloc, in one copy. A lane
// waits for the GPU after each copy, as in a step, and the figures have that wait in them. Called
// by the benchmark, with the GPU idle.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace longshore {

struct CopySpeed {
  std::string direction;  // "h2d", "d2h"
  Bytes bytes = 0;        // of one copy of ours: a unit's shard
  double gb_per_second = 0.0;
  double best_gb_per_second = 0.0;
};

// For copies of each of these sizes out of a registered arena, in both directions; the best of
// `rounds`. ConfigError without a GPU.
std::vector<CopySpeed> measure_copy_speeds(int device, const std::vector<Bytes>& sizes, int rounds);

// GB/s to the GPU and to the host while copies run both ways; the best round.
std::pair<double, double> measure_copies_both_ways(int device, Bytes bytes, int rounds);

}  // namespace longshore
