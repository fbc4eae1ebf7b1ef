#include "bench/lab/drawn_plans.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/measurement.h"

namespace longshore {
namespace {

constexpr size_t kWorstShown = 10;
constexpr double kMost = 0.95, kHalf = 0.5;

std::string text_of(const CaseChoice& choice) {
  std::string text;
  for (size_t key = 0; key < kCaseKeyCount; ++key) {
    const CaseKey& one = case_keys()[key];
    text +=
        (key > 0 ? ", " : "") + std::string(one.name) + " " + std::string(one.values[choice[key]]);
  }
  return text;
}

double least_within(const std::vector<PlanFigures>& all, double share) {
  std::vector<double> off;
  for (const PlanFigures& figures : all) off.push_back(std::abs(figures.off()));
  std::ranges::sort(off);
  const auto count = static_cast<size_t>(std::ceil(share * static_cast<double>(off.size())));
  return off[std::max<size_t>(count, 1) - 1];
}

struct RunningCase {
  PlanCase made;
  std::unique_ptr<TimerRun> run;
  std::vector<double> seconds;
};

// Runs one step of each plan in turn, which spreads other load of the machine over all of them.
std::vector<PlanFigures> measure_in_turn(const std::vector<CaseChoice>& choices, uint32_t first,
                                         const LabPlanOptions& options) {
  std::vector<RunningCase> cases;
  for (size_t i = 0; i < choices.size(); ++i) {
    const uint32_t seed = options.seed + first + static_cast<uint32_t>(i);
    cases.push_back({make_plan_case(choices[i], seed, options.step_milliseconds * 1e-3), {}, {}});
  }
  for (RunningCase& one : cases) {
    one.run = std::make_unique<TimerRun>(&one.made.step, one.made.ranks);
    one.run->step_seconds();  // warm-up: first use of threads and slots
  }
  for (int32_t round = 0; round < options.steps; ++round) {
    for (RunningCase& one : cases) one.seconds.push_back(one.run->step_seconds());
  }
  std::vector<PlanFigures> figures;
  for (const RunningCase& one : cases) {
    const auto [fastest, slowest] = std::ranges::minmax(one.seconds);
    figures.push_back(
        {.choice = one.made.choice,
         .operations = one.made.step.schedule.ops.size() + one.made.step.updates.ops.size(),
         .planned = one.made.forecast.seconds,
         .measured = median_of(one.seconds),
         .fastest = fastest,
         .slowest = slowest});
  }
  return figures;
}

void print_figures(const std::vector<PlanFigures>& all, const CaseCover& cover) {
  size_t within_5 = 0, within_10 = 0;
  for (const PlanFigures& figures : all) {
    within_5 += std::abs(figures.off()) <= 0.05 ? 1 : 0;
    within_10 += std::abs(figures.off()) <= 0.10 ? 1 : 0;
  }
  print_out("%zu plans, %zu of %zu pairs of values of two keys\n", all.size(), cover.pairs,
            cover.pairs_all);
  print_out("measured of planned: half within %.1f %%, 95 %% within %.1f %%, all within %.1f %%\n",
            100.0 * least_within(all, kHalf), 100.0 * least_within(all, kMost),
            100.0 * least_within(all, 1.0));
  print_out("within 5 %%: %zu, within 10 %%: %zu\n\n%24s %20s %6s %8s %8s\n", within_5, within_10,
            "key", "value", "plans", "half", "most");
  for (size_t key = 0; key < kCaseKeyCount; ++key) {
    for (size_t value = 0; value < case_keys()[key].values.size(); ++value) {
      std::vector<PlanFigures> those;
      for (const PlanFigures& one : all) {
        if (one.choice[key] == value) those.push_back(one);
      }
      if (those.empty()) continue;
      print_out("%24s %20s %6zu %7.1f%% %7.1f%%\n", std::string(case_keys()[key].name).c_str(),
                std::string(case_keys()[key].values[value]).c_str(), those.size(),
                100.0 * least_within(those, kHalf), 100.0 * least_within(those, 1.0));
    }
  }
  std::vector<PlanFigures> worst = all;
  std::ranges::sort(worst, {}, [](const PlanFigures& one) { return -std::abs(one.off()); });
  worst.resize(std::min(worst.size(), kWorstShown));
  print_out("\nfurthest off; ms planned, measured, the fastest and the slowest step\n");
  for (const PlanFigures& one : worst) {
    print_out("%+6.1f%% %7.1f %7.1f %7.1f %7.1f  %zu operations: %s\n", 100.0 * one.off(),
              one.planned * 1e3, one.measured * 1e3, one.fastest * 1e3, one.slowest * 1e3,
              one.operations, text_of(one.choice).c_str());
  }
}

Json to_json(const std::vector<PlanFigures>& all, const CaseCover& cover) {
  Json plans = Json::array();
  for (const PlanFigures& one : all) {
    Json keys;
    for (size_t key = 0; key < kCaseKeyCount; ++key) {
      keys[std::string(case_keys()[key].name)] = case_keys()[key].values[one.choice[key]];
    }
    plans.push_back({{"keys", keys},
                     {"operations", one.operations},
                     {"planned_seconds", one.planned},
                     {"measured_seconds", one.measured},
                     {"fastest_seconds", one.fastest},
                     {"slowest_seconds", one.slowest}});
  }
  return {{"pairs", cover.pairs}, {"pairs_all", cover.pairs_all}, {"plans", plans}};
}

}  // namespace

std::vector<PlanFigures> measure_plans(const LabPlanOptions& options, const CaseCover& cover) {
  std::vector<PlanFigures> all;
  for (size_t first = 0; first < cover.choices.size();) {
    const size_t count =
        std::min(static_cast<size_t>(options.in_turn), cover.choices.size() - first);
    const auto begin = cover.choices.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<CaseChoice> those(begin, begin + static_cast<std::ptrdiff_t>(count));
    std::ranges::move(measure_in_turn(those, static_cast<uint32_t>(first), options),
                      std::back_inserter(all));
    first += count;
  }
  return all;
}

int run_lab_plans(const LabPlanOptions& options) {
  const CaseCover cover = draw_choices(options.plans, options.seed);
  const std::vector<PlanFigures> all = measure_plans(options, cover);
  if (options.json) {
    print_out("%s\n", to_json(all, cover).dump(1).c_str());
  } else {
    print_figures(all, cover);
  }
  return 0;
}

}  // namespace longshore
