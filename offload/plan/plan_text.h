// The plan for people and for programs: the same numbers as a table and as JSON. Pure functions.
#pragma once

#include <string>

#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// What lives where, in bytes and percent of the limit; ends with a newline.
std::string format_plan(const TierPlan& plan, const Machine& machine);
// What a kill costs a run whose state is on drives; part of a line.
std::string durability_text(const TierPlan& plan);
// One JSON object, indented; ends with a newline.
std::string plan_to_json(const TierPlan& plan, const Machine& machine);

}  // namespace longshore
