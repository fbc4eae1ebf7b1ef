// `longshore_lab scaling`: simulates many ranks with the schedules of Longshore, FSDP2 and
// DeepSpeed, on machines given by rates, with jitter and a slow rank. Nothing is run. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longshore {

struct LabScalingOptions {
  std::vector<int64_t> tokens = {4096, 8192, 16384};  // of each rank, in a step
  double jitter = 0.05;
  double slow_rank = 0.05;
  bool json = false;
};

struct ScalingFigures {
  std::string machine;
  int32_t ranks = 1;
  int32_t nodes = 1;
  double network = 0.0;  // Gbit/s of a node; 0: one node
  int64_t tokens = 0;
  std::string way;  // Longshore's fastest strategy and gather mode
  // Throughput relative to N times one rank, or N times one node with several nodes. `jittered`:
  // both sides have jitter, and one of the many ranks is slow.
  double longshore = 0.0, jittered = 0.0, fsdp2 = 0.0, deepspeed = 0.0;
};

std::vector<ScalingFigures> scale_on_paper(const LabScalingOptions& options);

int run_lab_scaling(const LabScalingOptions& options);

}  // namespace longshore
