// The text of a plan on one screen, readable without documentation: whether the plan fits, how long
// a step takes, what limits it, and which key would change that. Also the text of a machine's
// rates. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

#include "offload/forecast/machine_rates.h"
#include "offload/forecast/plan_search.h"
#include "offload/forecast/step_forecast.h"

namespace longshore {

// The contents of the screen in addition to the plan.
struct PlanScreen {
  RunForecast forecast = {};
  std::string source = {};             // where the rates come from; empty: no rates are known
  std::vector<PlanPoint> points = {};  // the run's plan and single changes; may be empty
  int64_t sequences_per_step = 1;
  std::optional<double> decoded_per_second = {};  // tokens, of samples between steps
};

// Returns the screen as text, in lines.
std::string format_screen(const TierPlan& plan, const Machine& machine, const PlanScreen& screen);

// Returns the screen's first line, and the line about a step if the rates are known.
std::string format_brief(const TierPlan& plan, const PlanScreen& screen);

// Formats a duration such as "3 h 24 min", "3 min 29 s", "12.3 s" or "81 ms".
std::string rounded_seconds(double seconds);
// Formats changes such as "fsdp.prefetch = 2, train.micro_batch = 4".
std::string change_text(const std::vector<KeyChange>& changes);
// Lists points of a search by speed, with their numbers, costs and changed keys. Of many points it
// lists the fastest that differ by more than the error of a forecast, and those that take least of
// each memory. For plans that write much it states how long drives with this endurance rating last;
// empty: a usual rating.
std::string format_points(const std::vector<PlanPoint>& points,
                          std::optional<Bytes> rated_writes = std::nullopt);

// Return JSON; unknown values are null.
nlohmann::ordered_json forecast_to_json(const RunForecast& forecast, const std::string& source);
nlohmann::ordered_json points_to_json(const std::vector<PlanPoint>& points);

// A machine's rates as text and as JSON.

// Prints a line for each known rate.
std::string format_rates(const MachineRates& rates);
// Returns all rates in bytes and operations per second; unknown ones are null.
nlohmann::ordered_json rates_to_json(const MachineRates& rates);

}  // namespace longshore
