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

  // Returns the bytes allocated since construction that are still alive, and their peak.
  Bytes live() const;
  Bytes peak() const;
};

}  // namespace longshore
