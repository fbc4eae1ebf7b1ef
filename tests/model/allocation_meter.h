// AllocationMeter: counts what LibTorch allocates on the CPU while it lives. One at a time.
#pragma once

#include "base/bytes.h"

namespace longshore {

class AllocationMeter {
 public:
  AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;
  ~AllocationMeter();

  // Bytes that were allocated since construction and are still alive, and the most there ever were.
  Bytes live() const;
  Bytes peak() const;
};

}  // namespace longshore
