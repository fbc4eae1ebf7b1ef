// How long the drives of a plan last under what it writes to them. Pure functions of the plan.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/plan/tier_plan.h"

namespace longshore {

// Lines for a person: terabytes of the run, their share of the rating, days until it is used up
// (where a step's seconds are known), and what the drives say themselves. Empty without drives.
std::string drive_life_text(const TierPlan& plan);

// The numbers of drive_life_text by drive; what is not known is null.
nlohmann::ordered_json drive_life_json(const TierPlan& plan);

}  // namespace longshore
