// How many bytes of host memory one element's update reads and writes. Pure table.
#pragma once

#include "shard/state_format.h"

namespace longshore {

struct UpdateTraffic {
  Bytes read = 0;
  Bytes written = 0;
  Bytes total() const { return read + written; }
};

// Of one trainable element. The separate bf16 parameter of format fp32 is read before it is
// written, because plain stores own the cache line first.
UpdateTraffic update_traffic(const StateOptions& options);

}  // namespace longshore
