// The memory bound of an update: a pass over the same streams that only moves them, with the same
// prefetching and the same stores. What a machine reaches with it is the most an update can. Pure
// functions, any thread.
#pragma once

#include "offload/optimizer/update_slice.h"

namespace longshore {

// Reads what an update of the slice reads and writes what it writes: state is written back as it
// was read, the separate bf16 parameter of the fp32 form as zeros past the caches. The result
// depends on everything that was read, so that nothing is left out.
uint64_t move_streams(const UpdateSlice& slice);

}  // namespace longshore
