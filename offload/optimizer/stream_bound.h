// stream_bound: the memory bound of an update, from a pass over the same streams that only moves
// bytes; its fastest loop bounds every update on the machine. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "offload/optimizer/update_rule.h"

namespace longshore {

// The loops to try; the fastest depends on the machine, its load and the streams.
enum class MoveLoop : uint8_t {
  kShort,  // 64 elements of each stream in rotation, prefetched as in the update
  kLong,   // 256 elements, prefetched from twice as far
  kPlain,  // 64 elements, with hardware prefetch only
};
inline constexpr std::array<MoveLoop, 3> kMoveLoops = {MoveLoop::kShort, MoveLoop::kLong,
                                                       MoveLoop::kPlain};

// Reads and writes the streams of an update: state is written back unchanged, and the separate bf16
// parameter of the fp32 form as zeros past the caches. The result depends on all bytes read, so
// that no load is optimised away.
uint64_t move_streams(const UpdateSlice& slice, MoveLoop loop);

}  // namespace longshore
