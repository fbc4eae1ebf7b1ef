// update_traffic: host memory bytes that an update reads and writes. Pure function.
#pragma once

#include "shard/state_format.h"

namespace longshore {

struct UpdateTraffic {
  Bytes read = 0;
  Bytes written = 0;
  Bytes total() const { return read + written; }
};

// Returns the bytes for `elements` elements of a trainable segment. The separate bf16 parameter of
// format fp32 is only written, because its stores bypass the caches.
UpdateTraffic update_traffic(const StateOptions& options, Segment segment, int64_t elements);

}  // namespace longshore
