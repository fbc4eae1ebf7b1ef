// A thread that moves bytes or starts work, and computes little, asks to run as soon as it is
// woken: on cores that compute it waits up to three milliseconds for the others' slices to end, and
// whoever waits for it waits as long.
#pragma once

namespace longshore {

// For the calling thread, and for those that it makes. Linux since 6.12 has slices of a thread's
// own (sched_setattr(2), sched_runtime of SCHED_OTHER); earlier ones know nothing of it, and
// nothing changes there.
void ask_for_short_slices() noexcept;

}  // namespace longshore
