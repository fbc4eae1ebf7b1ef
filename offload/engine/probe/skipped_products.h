// SkippedProducts: matrix products on the CPU that allocate their results and compute nothing. A
// probe for a device that is not installed measures bytes only: without the products a block of a
// 70B model takes a second, with them minutes on a CPU without bf16 instructions. Its operands are
// zero, so the results are those of the products. Lives on the probe's thread while the process
// computes nothing else.
#pragma once

#include <c10/util/Exception.h>
#include <torch/library.h>

namespace longshore {

class SkippedProducts {
 public:
  SkippedProducts();
  SkippedProducts(const SkippedProducts&) = delete;
  SkippedProducts& operator=(const SkippedProducts&) = delete;
  ~SkippedProducts() = default;

 private:
  // LibTorch warns of kernels that are replaced.
  struct Quiet : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Quiet quiet_;
  c10::WarningUtils::WarningHandlerGuard guard_;
  torch::Library kernels_;  // removed at the end, so that LibTorch's own serve again
};

}  // namespace longshore
