// PlanSearch: finds changes of keys that make a step faster or smaller, by drafting and forecasting
// plans; nothing is run. Changes keep all results, except the state's format on request. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "offload/forecast/step_forecast.h"
#include "offload/plan/plan_inputs.h"

namespace longshore {

// One value of one key, in run file syntax.
struct KeyChange {
  std::string key;    // "fsdp.prefetch"
  std::string value;  // "2"
  std::function<void(PlanInputs&)> apply;
};

// The values of one key; the first is the run's own and changes nothing.
using SearchAxis = std::vector<KeyChange>;

struct SearchScope {
  bool formats = false;  // also narrower state formats, which change results
  // A directory on the machine's drive, for runs that name none in offload.nvme; empty: none.
  std::string drive = {};
  std::set<std::string> kept = {};  // keys that stay as they are
};
std::vector<SearchAxis> search_axes(const PlanInputs& inputs, const SearchScope& scope);

// A plan that fits, with its seconds and bytes.
struct PlanPoint {
  std::vector<size_t> choice;      // by axis
  std::vector<KeyChange> changes;  // relative to the run's own values
  double seconds = 0.0;
  double tokens_per_second = 0.0;          // of all ranks
  Bytes device = 0, host = 0, drives = 0;  // of one rank; drives: written by a step
  Bytes read = 0;                          // from drives and from the model's files by a step
};

// A drafted plan: its point, or the reason why it has none.
struct PlanDraft {
  std::optional<PlanPoint> point = {};
  Bytes missing = 0;                      // over the limits of all tiers; 0: it fits
  std::vector<std::string> unknown = {};  // the rates that its time needs
};

// The reason why a search found no point.
struct SearchFailure {
  std::vector<std::string> unknown = {};  // rates that plans that fit lack; empty: no plan fits
  // The plan that exceeds the limits least, and its differences from the run's own.
  PlanInputs nearest;
  std::vector<KeyChange> changes = {};
};

class PlanSearch {
 public:
  // Forecasts a plan's step; a plan with unknown rates is not a point.
  using Forecast = std::function<StepForecast(const PlanInputs&, const TierPlan&)>;

  PlanSearch(PlanInputs inputs, const Machine& machine, std::vector<SearchAxis> axes,
             Forecast forecast);

  // Returns the plan's point; nullptr if it does not fit or lacks a rate.
  const PlanPoint* at(const std::vector<size_t>& choice);
  // Returns the run's plan and all plans that differ in one key, the fastest first.
  std::vector<PlanPoint> one_change();
  // A greedy search: changes one or two keys at a time while less memory is missing or a memory
  // shrinks; then, from several plans, while a step gets faster. Returns the points that no other
  // point beats (the Pareto frontier), the fastest first.
  std::vector<PlanPoint> frontier();
  size_t plans_drafted() const { return known_.size(); }
  // Call it after frontier() if that is empty.
  SearchFailure failure() const;

 private:
  using Better = std::function<bool(const PlanPoint&, const PlanPoint&)>;
  void improve(std::vector<size_t> choice, const Better& better);
  const PlanDraft& drafted(const std::vector<size_t>& choice);
  PlanDraft draft(const std::vector<size_t>& choice) const;
  std::vector<KeyChange> changes_of(const std::vector<size_t>& choice) const;
  PlanInputs inputs_of(const std::vector<size_t>& choice) const;

  PlanInputs inputs_;
  Machine machine_;
  std::vector<SearchAxis> axes_;
  Forecast forecast_;
  std::map<std::vector<size_t>, PlanDraft> known_;
};

}  // namespace longshore
