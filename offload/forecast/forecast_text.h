// A plan on one screen, for somebody who never read the docs: whether it fits and by how much, how
// long it takes, what decides that and which key would change it. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "offload/forecast/plan_search.h"
#include "offload/forecast/run_forecast.h"

namespace longshore {

// What is to be shown beside the plan itself.
struct PlanScreen {
  RunForecast forecast = {};
  std::string source = {};             // of the rates; empty: nothing is known
  std::vector<PlanPoint> points = {};  // of the run's own plan and of single changes; may be empty
  int64_t sequences_per_step = 1;
};

std::string format_screen(const TierPlan& plan, const Machine& machine, const PlanScreen& screen);

// "3 h 24 min", "12.3 s", "81 ms".
std::string rounded_seconds(double seconds);
// What the points of a search take and which keys they change, the fastest first.
std::string format_points(const std::vector<PlanPoint>& points);

// The forecast for programs; what is not known is null.
nlohmann::ordered_json forecast_to_json(const RunForecast& forecast, const std::string& source);
nlohmann::ordered_json points_to_json(const std::vector<PlanPoint>& points);

}  // namespace longshore
