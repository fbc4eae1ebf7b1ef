// Reduce rounds: a reduction travels in rounds, which bounds its scratch for any unit.
#pragma once

#include <cstdint>

namespace longshore {

// The elements of one rank's part per round: 1 MiB of fp32 from each other rank. The next round
// travels while this one is added.
inline constexpr int64_t kRoundElements = 256 * 1024;

}  // namespace longshore
