// plan_text: a plan as a table for people and as JSON, with equal numbers. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// Returns a line that says whether the plan fits, and by how much.
std::string plan_verdict(const TierPlan& plan);
// Returns a line with the run's steps and the sizes of its checkpoints and exports.
std::string length_text(const TierPlan& plan);
// Says in one line how many sequences are decoded at the same time, and whether weights stay on the
// device or what passes to it for each token. Empty if the plan decodes none.
std::string decoding_text(const TierPlan& plan);
// Describes the drives' contents, the writes to them and their life. Empty without drives.
std::string nvme_text(const TierPlan& plan);
// Formats a count such as "1.10 G" or "81.2 M".
std::string count_text(double count);
// Prints each tier's contents in bytes and percent of its limit; ends with a newline.
std::string format_plan(const TierPlan& plan, const Machine& machine);
// Returns the part of a line that says what a killed run with its state on drives loses.
std::string durability_text(const TierPlan& plan);
// Returns the plan as one JSON object.
nlohmann::ordered_json plan_to_json(const TierPlan& plan, const Machine& machine);

}  // namespace longshore
