// validate_schedule: proves a schedule from its data alone, whoever built it. Pure, any thread.
//
// [Note: what is proved]
// 1. No two operations touch the same memory, one of them writing, unless one happens before the
//    other (happens_before.h) in the order of issue. Memory is: a unit's parameters and its
//    gradient in host memory, slots, gradient buffers, waiting gradients, input slots, activation
//    checkpoints on the host, slots of state, of parameters and of staging, state and activation
//    checkpoints on the drives.
// 2. Issued one by one, every operation finds what it needs: compute its units gathered in its
//    slots, its input, an unused gradient buffer; a reduction and a drain the whole gradient; an
//    update its unit's state; a commit everything that was updated; and so on.
// 3. Where collectives are ordered ([Note: order of collectives] of step_schedule.h), each is done
//    before the next one of the schedule begins. Ranks that have the same schedule then run the
//    same sequence of collectives.
// By 1 every execution gives each operation what the order of issue gives it, which is right by 2.
// Slots and buffers are numbered within the plan's, so bytes on the device never exceed the plan's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

struct ScheduleFinding {
  int32_t op = -1;   // -1: of the whole schedule
  std::string text;  // "op 17 fetch unit 3 slot 1: slot 1 may still be read by op 12 backward ..."
};

// What is wrong, in the order of issue; empty for a valid schedule. Of `inputs.executions` only the
// number of slots is used, not what goes where.
std::vector<ScheduleFinding> validate_schedule(const StepSchedule& schedule,
                                               const ScheduleInputs& inputs);

// CheckFailure with the first findings where there are any.
void check_step_schedule(const StepSchedule& schedule, const ScheduleInputs& inputs);

}  // namespace longshore
