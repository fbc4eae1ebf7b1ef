// CpuBranches: takes the CPU's branches while it lives, so that a GPU test can compute its expected
// values on the CPU in a binary with the stand-in for GPUs (tests/stand_in_gpu), which takes a
// GPU's branches for CPU tensors. In other binaries it does nothing. Test code.
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

// ShapesOnly: while it lives, kernels and products of the stand-in leave their results as they are,
// so that tests of memory run shapes of real models in seconds. In other binaries it does nothing.
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
