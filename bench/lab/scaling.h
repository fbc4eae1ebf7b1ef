// `longshore_lab scaling`: many ranks on paper: Longshore's schedule and those of FSDP2 and
// DeepSpeed on machines that are described by rates, with jitter and a slow rank. Nothing is run.
// Main thread.
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
  std::string way;  // how Longshore shards and gathers: the fastest
  // Of that many times what one rank does, or one node where there are several. Jittered: both
  // are, and one of the many is slow.
  double longshore = 0.0, jittered = 0.0, fsdp2 = 0.0, deepspeed = 0.0;
};

std::vector<ScalingFigures> scale_on_paper(const LabScalingOptions& options);

int run_lab_scaling(const LabScalingOptions& options);

}  // namespace longshore
