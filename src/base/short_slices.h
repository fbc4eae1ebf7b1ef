// Short slices: a thread that moves bytes or starts work, and computes little, asks to run as soon
// as it wakes. On busy cores it otherwise waits up to 3 ms for other slices to end, and delays
// every thread that waits for it.
#pragma once

namespace longshore {

// Applies to the calling thread and the threads that it creates later. Linux has per-thread slices
// since 6.12 (sched_setattr(2), sched_runtime of SCHED_OTHER); earlier kernels ignore it.
void ask_for_short_slices() noexcept;

}  // namespace longshore
