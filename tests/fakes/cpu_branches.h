// Where a test of the GPU computes what it expects on the CPU: in a binary with the stand-in for
// GPUs (tests/stand_in_gpu), which takes a GPU's branches for the CPU's tensors, those of the CPU
// are taken while one of these lives. Elsewhere tensors tell, and this does nothing. Test code.
#pragma once

namespace longshore::fakes {

class CpuBranches {
 public:
  CpuBranches();
  CpuBranches(const CpuBranches&) = delete;
  CpuBranches& operator=(const CpuBranches&) = delete;
  ~CpuBranches();
};

}  // namespace longshore::fakes
