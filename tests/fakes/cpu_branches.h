// Where a test of the GPU computes what it expects on the CPU: in a binary with the stand-in for
// GPUs (tests/stand_in_gpu), which takes a GPU's branches for the CPU's tensors, those of the CPU
// are taken while one of these lives. Elsewhere tensors tell, and this does nothing. Test code.
#pragma once

#include <memory>

namespace longshore::fakes {

class CpuBranches {
 public:
  CpuBranches();
  CpuBranches(const CpuBranches&) = delete;
  CpuBranches& operator=(const CpuBranches&) = delete;
  ~CpuBranches();
};

// Where a test of the GPU looks at memory alone: while one lives, the stand-in's kernels and
// products leave their results as they are, so that shapes of real models take seconds. Elsewhere
// kernels are fast, and this does nothing.
class ShapesOnly {
 public:
  ShapesOnly();
  ShapesOnly(const ShapesOnly&) = delete;
  ShapesOnly& operator=(const ShapesOnly&) = delete;
  ~ShapesOnly();

 private:
  struct Products;
  std::unique_ptr<Products> products_;
};

}  // namespace longshore::fakes
