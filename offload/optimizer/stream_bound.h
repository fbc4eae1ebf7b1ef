// The memory bound of an update: a pass over the same streams that only moves them. What a machine
// reaches with the fastest of its loops is the most an update can. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "offload/optimizer/update_slice.h"

namespace longshore {

// Which one is fastest depends on the machine, its neighbours and the streams.
enum class MoveLoop : uint8_t {
  kShort,  // 64 elements of each stream in turn, prefetched as the update does
  kLong,   // 256 elements, prefetched from twice as far
  kPlain,  // 64 elements, prefetched by the hardware alone
};
inline constexpr std::array<MoveLoop, 3> kMoveLoops = {MoveLoop::kShort, MoveLoop::kLong,
                                                       MoveLoop::kPlain};

// Reads what an update of the slice reads and writes what it writes: state is written back as it
// was read, the separate bf16 parameter of the fp32 form as zeros past the caches. The result
// depends on everything that was read, so that nothing is left out.
uint64_t move_streams(const UpdateSlice& slice, MoveLoop loop);

}  // namespace longshore
