// validate_schedule: proves a schedule from its data alone, independent of its builder. Pure.
//
// [Note: proved properties]
// 1. No two operations touch the same memory, one of them writing, unless one happens before the
//    other (HappensBefore) in the order of issue. The memory that is checked: a unit's
//    parameters and gradient in host memory, device slots, gradient buffers, waiting gradients,
//    input slots, activation checkpoints on the host, state, parameter and staging slots, and state
//    and activation checkpoints on the drives.
// 2. Issued one by one, every operation finds its operands: compute its gathered units, its input
//    and an unused gradient buffer; a reduction and a drain the whole gradient; an update its
//    unit's state; a commit every updated unit; and so on.
// 3. With ordered collectives ([Note: order of collectives] of step_schedule.h) each one ends
//    before the next one of the schedule begins, so ranks with the same schedule run the same
//    sequence.
// 4. Operations declare exactly what they access. The rules of 1 and 2 know the accesses without
//    the declarations, so a wrong declaration, from which the builder would derive wrong waits,
//    hides no race.
// By 1 every execution gives each operation the same operands as the order of issue, and by 2 those
// are right. Slot and buffer numbers stay within the plan, so device bytes never exceed the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

struct ScheduleFinding {
  int32_t op = -1;   // -1: the finding concerns the whole schedule
  std::string text;  // "op 17 fetch unit 3 slot 1: slot 1 may still be read by op 12 backward ..."
};

// Returns the findings in the order of issue; empty for a valid schedule. It uses only the number
// of slots of `inputs.executions`, not the assignment of units to slots. What slots hold at the
// begin of the pass it takes from `inputs.begin`: a pass that leases a unit that is neither there
// nor fetched is not valid.
std::vector<ScheduleFinding> validate_schedule(const StepSchedule& schedule,
                                               const ScheduleInputs& inputs);

// Throws CheckFailure with the first findings if the schedule is not valid.
void check_step_schedule(const StepSchedule& schedule, const ScheduleInputs& inputs);

}  // namespace longshore
