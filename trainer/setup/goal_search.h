// GoalSearch: what `longshore init` makes of a goal: among the plans of a draft that fit, the one
// that is fastest, smallest, or has the longest sequences. Plans are drafted, nothing is run. Main
// thread.
#pragma once

#include <optional>

#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_file_draft.h"

namespace longshore {

// Of the setup's plan and those that a search finds around it. `described`: the machine, where it
// is not this one. For the fastest its rates must be known: ConfigError. Nothing where no plan
// fits.
std::optional<PlanPoint> best_point(DraftGoal goal, const RunSetup& setup,
                                    const std::optional<DescribedMachine>& described);

// The setup's sequence length, doubled for as long as some plan with it fits, up to `most`.
int64_t longest_sequences(const RunSetup& setup, int64_t most);

}  // namespace longshore
