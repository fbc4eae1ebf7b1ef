// drive_life: how long the drives of a plan last under its writes. Pure functions of the plan.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/plan/tier_plan.h"

namespace longshore {

// Describes each drive in a line: terabytes of the run, their share of the rating, days until it is
// used up (if a step's seconds are known), and the drive's own report. Empty without drives.
std::string drive_life_text(const TierPlan& plan);

// Returns the numbers of drive_life_text by drive; unknown ones are null.
nlohmann::ordered_json drive_life_json(const TierPlan& plan);

}  // namespace longshore
