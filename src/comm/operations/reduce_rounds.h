// Reduce rounds: the pieces in which a reduction travels, so that its scratch is bounded whatever
// the size of a unit. Constants, read by any thread.
#pragma once

#include <cstdint>

namespace longshore {

// Elements of one rank's part that travel in a round: 1 MiB of fp32 from each peer. The next round
// travels while this one is added.
inline constexpr int64_t kRoundElements = 256 * 1024;

}  // namespace longshore
