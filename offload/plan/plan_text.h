// The plan for people and for programs: the same numbers as a table and as JSON. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// Whether it fits, and by how much: a line.
std::string plan_verdict(const TierPlan& plan);
// The run's steps, and what its checkpoints and exports take: a line.
std::string length_text(const TierPlan& plan);
// What the drives hold, what is written to them and how long they last. Empty without drives.
std::string nvme_text(const TierPlan& plan);
// "1.10 G", "81.2 M".
std::string count_text(double count);
// What lives where, in bytes and percent of the limit; ends with a newline.
std::string format_plan(const TierPlan& plan, const Machine& machine);
// What a kill costs a run whose state is on drives; part of a line.
std::string durability_text(const TierPlan& plan);
// One JSON object.
nlohmann::ordered_json plan_to_json(const TierPlan& plan, const Machine& machine);

}  // namespace longshore
