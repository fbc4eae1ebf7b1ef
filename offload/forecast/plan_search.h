// PlanSearch: which keys of the run file would make a step faster, or smaller: plans are drafted
// with other values and forecast, nothing is run. Only keys that change no number are varied, but
// for the state's format where that is asked. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "offload/forecast/step_forecast.h"
#include "offload/plan/plan_inputs.h"

namespace longshore {

// One value of one key, as the run file would have it.
struct KeyChange {
  std::string key;    // "fsdp.prefetch"
  std::string value;  // "2"
  std::function<void(PlanInputs&)> apply;
};

// The values of one key; the first is the run's own and changes nothing.
using SearchAxis = std::vector<KeyChange>;

struct SearchScope {
  bool formats = false;  // narrower formats of the state too: they change numbers
};
std::vector<SearchAxis> search_axes(const PlanInputs& inputs, const SearchScope& scope);

// A plan that fits, in seconds and bytes.
struct PlanPoint {
  std::vector<size_t> choice;      // by axis
  std::vector<KeyChange> changes;  // from the run's own values
  double seconds = 0.0;
  Bytes device = 0, host = 0, drives = 0;  // of one rank; written to drives by a step
};

class PlanSearch {
 public:
  // The forecast of a plan's step; one that lacks a rate is no point.
  using Forecast = std::function<StepForecast(const PlanInputs&, const TierPlan&)>;

  PlanSearch(PlanInputs inputs, const Machine& machine, std::vector<SearchAxis> axes,
             Forecast forecast);

  // nullptr: it does not fit.
  const PlanPoint* at(const std::vector<size_t>& choice);
  // The run's own plan, every plan that differs from it in one key, the fastest first.
  std::vector<PlanPoint> one_change();
  // Starts from several plans, and changes one or two keys for as long as that makes a step faster;
  // then for as long as it takes less of each memory. Points of which no other is as good in every
  // figure, the fastest first.
  std::vector<PlanPoint> frontier();
  size_t plans_drafted() const { return known_.size(); }

 private:
  using Better = std::function<bool(const PlanPoint&, const PlanPoint&)>;
  void improve(std::vector<size_t> choice, const Better& better);
  std::optional<PlanPoint> draft(const std::vector<size_t>& choice) const;

  PlanInputs inputs_;
  Machine machine_;
  std::vector<SearchAxis> axes_;
  Forecast forecast_;
  std::map<std::vector<size_t>, std::optional<PlanPoint>> known_;
};

}  // namespace longshore
