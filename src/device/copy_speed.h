// copy_speed: measures how fast a lane of the engine copies between the host's arena and a GPU,
// next to the best that one plain cudaMemcpyAsync reaches with memory of cudaHostAlloc. A lane
// waits for the GPU after each copy, as in a step; its times include that wait. The benchmark calls
// it while the GPU is idle.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace longshore {

struct CopySpeed {
  std::string direction;  // "h2d", "d2h"
  Bytes bytes = 0;        // bytes of one copy by the lane: a unit's shard
  double gb_per_second = 0.0;
  double best_gb_per_second = 0.0;
};

// Measures copies of each size to and from a registered arena and keeps the best of `rounds`.
// ConfigError without a GPU.
std::vector<CopySpeed> measure_copy_speeds(int device, const std::vector<Bytes>& sizes, int rounds);

// Returns GB/s to the GPU and to the host while copies run both ways, from the best round.
std::pair<double, double> measure_copies_both_ways(int device, Bytes bytes, int rounds);

}  // namespace longshore
