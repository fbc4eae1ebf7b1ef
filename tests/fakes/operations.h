// Changes of operations, for tests of broken schedules: which slots an operation names. Pure
// functions.
#pragma once

#include <algorithm>

#include "offload/schedule/step_schedule.h"

namespace longshore::fakes {

// Makes the operation name another slot of the kind, or this one too if it names none.
template <typename Slot>
void set_slot(Op& op, Slot slot) {
  const auto named = std::ranges::find(op.accesses, kMemoryOf<Slot>,
                                       [](const Access& access) { return access.resource.memory; });
  if (named != op.accesses.end()) {
    named->resource = slot;
  } else {
    op.accesses.insert(op.accesses.begin(), reads(slot, op.unit));
  }
}

// Makes the operation name no slot of the kind.
template <typename Slot>
void drop_slot(Op& op) {
  std::erase_if(op.accesses,
                [](const Access& access) { return access.resource.memory == kMemoryOf<Slot>; });
}

}  // namespace longshore::fakes
