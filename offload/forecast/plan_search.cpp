#include "offload/forecast/plan_search.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

constexpr int64_t kMostPrefetch = 3;
constexpr int64_t kMostMicroBatch = 64;
// Steps within this factor count as equal.
constexpr double kSame = 1.001;

KeyChange own() {
  return {"", "", [](PlanInputs&) {}};
}

void add_unless_own(SearchAxis& axis, bool is_own, KeyChange change) {
  if (!is_own) axis.push_back(std::move(change));
}

SearchAxis recompute_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  const auto add = [&](const std::string& value, bool recompute, bool fits, KeptResults results) {
    const bool is_own =
        inputs.recompute == recompute &&
        (!recompute || (inputs.keep_what_fits == fits && inputs.keep_results == results));
    add_unless_own(axis, is_own, {"fsdp.recompute", value, [=](PlanInputs& to) {
                                    to.recompute = recompute;
                                    to.keep_what_fits = fits;
                                    to.keep_results = results;
                                  }});
  };
  add("\"none\"", false, false, KeptResults::kNone);
  add("\"auto\"", true, true, KeptResults::kNone);
  for (const KeptResults kept : kAllKeptResults) add(recompute_value(kept), true, false, kept);
  return axis;
}

SearchAxis activation_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  const auto add = [&](const char* value, bool offload, bool drives) {
    const bool is_own = inputs.offload_inputs == offload && inputs.nvme.inputs == drives;
    add_unless_own(axis, is_own, {"offload.activations", value, [=](PlanInputs& to) {
                                    to.offload_inputs = offload;
                                    to.nvme.inputs = drives;
                                  }});
  };
  add("\"device\"", false, false);
  add("\"host\"", true, false);
  if (!inputs.nvme.directories.empty()) add("\"nvme\"", true, true);
  return axis;
}

// Lists the tiers of state and parameters: frozen parameters in the model's files or not where that
// is possible, and both directions if drives are configured. One that is in files needs no drives.
SearchAxis state_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  // A base that is packed as published can stay in its files.
  if (inputs.model_files && inputs.keep_frozen) {
    axis.push_back(
        {"offload.parameters", "\"files\"", [](PlanInputs& to) { to.keep_frozen = false; }});
  }
  if (inputs.model_files && !inputs.nvme.state && !inputs.keep_frozen) {
    axis.push_back({"offload.parameters", inputs.frozen_files ? "\"host\"" : "\"files\"",
                    [files = inputs.frozen_files ? nullptr : inputs.model_files](PlanInputs& to) {
                      to.frozen_files = files;
                    }});
  }
  if (inputs.nvme.directories.empty() || inputs.frozen_files) return axis;
  const auto add = [&](const char* key, const char* value, bool state, bool parameters) {
    const bool is_own = inputs.nvme.state == state && inputs.nvme.parameters == parameters;
    add_unless_own(axis, is_own, {key, value, [=](PlanInputs& to) {
                                    to.nvme.state = state;
                                    to.nvme.parameters = parameters;
                                  }});
  };
  // Parameters are on drives only with the state, so each change is of one key.
  if (inputs.nvme.state) add("offload.parameters", "\"nvme\"", true, true);
  if (inputs.nvme.state) add("offload.parameters", "\"host\"", true, false);
  if (!inputs.nvme.parameters) add("offload.optimizer", "\"nvme\"", true, false);
  if (!inputs.nvme.parameters) add("offload.optimizer", "\"host\"", false, false);
  return axis;
}

// Parameters follow the state to drives, so alone this change gives no plan.
SearchAxis parameter_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  if (inputs.nvme.directories.empty() || inputs.nvme.state || inputs.frozen_files) return axis;
  axis.push_back(
      {"offload.parameters", "\"nvme\"", [](PlanInputs& to) { to.nvme.parameters = true; }});
  return axis;
}

SearchAxis prefetch_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  for (int64_t ahead = 0; ahead <= kMostPrefetch; ++ahead) {
    add_unless_own(
        axis, inputs.prefetch == ahead,
        {"fsdp.prefetch", std::to_string(ahead), [=](PlanInputs& to) { to.prefetch = ahead; }});
  }
  return axis;
}

SearchAxis micro_batch_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  const int64_t most =
      std::min(kMostMicroBatch,
               (inputs.sequences_per_step + inputs.topology.ranks - 1) / inputs.topology.ranks);
  for (int64_t sequences = 1; sequences <= most; sequences *= 2) {
    add_unless_own(axis, inputs.micro_batch == sequences,
                   {"train.micro_batch", std::to_string(sequences),
                    [=](PlanInputs& to) { to.micro_batch = sequences; }});
  }
  return axis;
}

SearchAxis unit_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  for (const OtherUnits& other : inputs.other_units) {
    axis.push_back({"fsdp.units", other.name, [other](PlanInputs& to) {
                      to.model = other.model.get();
                      to.costs = other.costs;
                      to.units = other.name;
                    }});
  }
  return axis;
}

SearchAxis gather_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  if (inputs.topology.ranks == 1) return axis;
  const auto add = [&](const char* value, GatherMode mode) {
    add_unless_own(axis, inputs.gather == mode,
                   {"fsdp.gather", value, [=](PlanInputs& to) { to.gather = mode; }});
  };
  add("\"collective\"", GatherMode::kCollective);
  if (why_not_on_host(inputs).empty()) add("\"host\"", GatherMode::kHost);
  return axis;
}

SearchAxis format_axis(const PlanInputs& inputs) {
  SearchAxis axis = {own()};
  for (const StateFormatTraits& traits : kStateFormats) {
    const StateFormat format = traits.format;
    add_unless_own(axis, inputs.state.format == format,
                   {"offload.state_format", '"' + std::string(traits.name) + '"',
                    [=](PlanInputs& to) { to.state.format = format; }});
  }
  return axis;
}

// Returns whether `a` is no worse in any value and better in one.
bool beats(const PlanPoint& a, const PlanPoint& b) {
  const bool as_good =
      a.seconds <= b.seconds && a.device <= b.device && a.host <= b.host && a.drives <= b.drives;
  return as_good &&
         (a.seconds < b.seconds || a.device < b.device || a.host < b.host || a.drives < b.drives);
}

bool same_figures(const PlanPoint& a, const PlanPoint& b) {
  return a.seconds == b.seconds && a.device == b.device && a.host == b.host && a.drives == b.drives;
}

// Returns the bytes by which a plan that does not fit exceeds the limits of all tiers.
Bytes missing_of(const TierPlan& plan) {
  const auto over = [](const PlanAccount& account, Bytes there) {
    Bytes bytes = std::max<Bytes>(0, account.total - account.limit);
    if (!account.limit_auto && there > 0) bytes += std::max<Bytes>(0, account.limit - there);
    return bytes;
  };
  const Bytes missing = over(plan.device, plan.device.memory) + over(plan.host, plan.host.machine) +
                        plan.drives.missing;
  return std::max<Bytes>(1, missing);
}

// The one of two equally fast plans that writes less to drives comes first.
bool faster(const PlanPoint& a, const PlanPoint& b) {
  return std::tuple(a.seconds, a.drives, a.device + a.host, a.changes.size(), a.choice) <
         std::tuple(b.seconds, b.drives, b.device + b.host, b.changes.size(), b.choice);
}

}  // namespace

std::vector<SearchAxis> search_axes(const PlanInputs& inputs, const SearchScope& scope) {
  std::vector<SearchAxis> axes = {recompute_axis(inputs), activation_axis(inputs),
                                  prefetch_axis(inputs),  micro_batch_axis(inputs),
                                  unit_axis(inputs),      state_axis(inputs),
                                  gather_axis(inputs),    parameter_axis(inputs)};
  if (scope.formats) axes.push_back(format_axis(inputs));
  for (SearchAxis& axis : axes) {
    std::erase_if(axis,
                  [&scope](const KeyChange& change) { return scope.kept.contains(change.key); });
  }
  return axes;
}

PlanSearch::PlanSearch(PlanInputs inputs, const Machine& machine, std::vector<SearchAxis> axes,
                       Forecast forecast)
    : inputs_(std::move(inputs)),
      machine_(machine),
      axes_(std::move(axes)),
      forecast_(std::move(forecast)) {}

const PlanPoint* PlanSearch::at(const std::vector<size_t>& choice) {
  const PlanDraft& draft = drafted(choice);
  return draft.point ? &*draft.point : nullptr;
}

const PlanDraft& PlanSearch::drafted(const std::vector<size_t>& choice) {
  auto known = known_.find(choice);
  if (known == known_.end()) known = known_.emplace(choice, draft(choice)).first;
  return known->second;
}

std::vector<KeyChange> PlanSearch::changes_of(const std::vector<size_t>& choice) const {
  std::vector<KeyChange> changes;
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    if (choice[axis] > 0) changes.push_back(axes_[axis][choice[axis]]);
  }
  return changes;
}

PlanInputs PlanSearch::inputs_of(const std::vector<size_t>& choice) const {
  PlanInputs inputs = inputs_;
  for (const KeyChange& change : changes_of(choice)) change.apply(inputs);
  return inputs;
}

PlanDraft PlanSearch::draft(const std::vector<size_t>& choice) const {
  const PlanDraft impossible{.missing = std::numeric_limits<Bytes>::max()};
  const PlanInputs inputs = inputs_of(choice);
  if (inputs.gather == GatherMode::kHost && !why_not_on_host(inputs).empty()) return impossible;
  if (inputs.nvme.parameters && !inputs.nvme.state) return impossible;
  try {
    const TierPlan plan = draft_tier_plan(inputs, machine_);
    if (!plan.fits()) return {.missing = missing_of(plan)};
    const StepForecast forecast = forecast_(inputs, plan);
    if (!forecast.known()) return {.unknown = forecast.unknown};
    return {.point = PlanPoint{.choice = choice,
                               .changes = changes_of(choice),
                               .seconds = forecast.seconds,
                               .tokens_per_second = forecast.tokens_per_second,
                               .device = plan.device.total,
                               .host = plan.host.total,
                               .drives = plan.step.traffic.nvme_written,
                               .read = plan.step.traffic.nvme_read + plan.step.traffic.files_read}};
  } catch (const DoesNotFitError&) {
    return impossible;
  }
}

SearchFailure PlanSearch::failure() const {
  SearchFailure failure;
  const std::vector<size_t>* nearest = nullptr;
  Bytes least = 0;
  for (const auto& [choice, draft] : known_) {
    for (const std::string& rate : draft.unknown) {
      if (std::ranges::find(failure.unknown, rate) == failure.unknown.end()) {
        failure.unknown.push_back(rate);
      }
    }
    if (nearest != nullptr && draft.missing >= least) continue;
    nearest = &choice;
    least = draft.missing;
  }
  const std::vector<size_t> choice =
      nearest == nullptr ? std::vector<size_t>(axes_.size(), 0) : *nearest;
  failure.nearest = inputs_of(choice);
  failure.changes = changes_of(choice);
  return failure;
}

std::vector<PlanPoint> PlanSearch::one_change() {
  std::vector<PlanPoint> points;
  std::vector<size_t> choice(axes_.size(), 0);
  if (const PlanPoint* point = at(choice)) points.push_back(*point);
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    for (size_t value = 1; value < axes_[axis].size(); ++value) {
      choice[axis] = value;
      if (const PlanPoint* point = at(choice)) points.push_back(*point);
    }
    choice[axis] = 0;
  }
  std::ranges::sort(points, faster);
  return points;
}

// Steepest descent over single changes, then over pairs, until neither helps. Of plans that do not
// fit the one that lacks less is better.
void PlanSearch::improve(std::vector<size_t> choice, const Better& better) {
  for (bool pairs = false;;) {
    std::vector<size_t> best = choice;
    const auto try_one = [&](const std::vector<size_t>& other) {
      const PlanDraft& draft = drafted(other);
      const PlanDraft& so_far = drafted(best);
      const bool nearer = draft.point ? !so_far.point || better(*draft.point, *so_far.point)
                                      : !so_far.point && draft.missing < so_far.missing;
      if (nearer) best = other;
    };
    for (size_t a = 0; a < axes_.size(); ++a) {
      for (size_t i = 0; i < axes_[a].size(); ++i) {
        std::vector<size_t> other = choice;
        other[a] = i;
        try_one(other);
        for (size_t b = a + 1; pairs && b < axes_.size(); ++b) {
          for (size_t j = 0; j < axes_[b].size(); ++j) {
            other[b] = j;
            try_one(other);
          }
          other[b] = choice[b];
        }
      }
    }
    if (best == choice && pairs) return;
    pairs = best == choice;
    choice = std::move(best);
  }
}

std::vector<PlanPoint> PlanSearch::frontier() {
  const auto less_of = [](Bytes PlanPoint::* figure) {
    return [figure](const PlanPoint& a, const PlanPoint& b) {
      return std::tuple(a.*figure, a.seconds) < std::tuple(b.*figure, b.seconds);
    };
  };
  const std::vector<size_t> run(axes_.size(), 0);
  for (const Better& smaller :
       {Better(less_of(&PlanPoint::device)), Better(less_of(&PlanPoint::host)),
        Better(less_of(&PlanPoint::drives))}) {
    improve(run, smaller);
  }
  // The search starts at the run's own plan and at the smallest plan of each memory.
  std::vector<std::vector<size_t>> starts = {run};
  for (const auto figure : {&PlanPoint::device, &PlanPoint::host, &PlanPoint::drives}) {
    const PlanPoint* least = nullptr;
    for (const auto& [choice, draft] : known_) {
      const std::optional<PlanPoint>& point = draft.point;
      if (point && (least == nullptr || less_of(figure)(*point, *least))) least = &*point;
    }
    if (least != nullptr) starts.push_back(least->choice);
  }
  for (const std::vector<size_t>& start : starts) improve(start, faster);
  std::vector<PlanPoint> points;
  for (const auto& [choice, draft] : known_) {
    if (draft.point) points.push_back(*draft.point);
  }
  std::ranges::sort(points, faster);
  std::vector<PlanPoint> frontier;
  for (const PlanPoint& point : points) {
    const bool beaten =
        std::ranges::any_of(points, [&](const auto& other) { return beats(other, point); });
    const bool again = std::ranges::any_of(frontier, [&](const PlanPoint& other) {
      return same_figures(other, point) ||
             (point.seconds < other.seconds * kSame && other.device <= point.device &&
              other.host <= point.host && other.drives <= point.drives);
    });
    if (!beaten && !again) frontier.push_back(point);
  }
  return frontier;
}

}  // namespace longshore
