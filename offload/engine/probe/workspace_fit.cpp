#include "offload/engine/probe/workspace_fit.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace longshore {
namespace {

// Margins between probed and real inputs: other splits, and products of other sizes, for which a
// kernel may use other blocks.
constexpr double kMeasuredMargin = 0.02;
constexpr double kFittedMargin = 0.05;
constexpr Bytes kScratchMargin = 256 * kKiB;  // at most a quarter of the whole
constexpr Bytes kSmallTensors = 4 * kKiB;

Bytes most_of(const std::vector<Bytes>& phases) {
  return phases.empty() ? 0 : std::ranges::max(phases);
}

// Adds the margin of memory that holds no kernel scratch, such as a kept graph; 0 stays 0.
Bytes with_share(Bytes bytes, double share) {
  if (bytes == 0) return 0;
  return bytes + static_cast<Bytes>(std::ceil(static_cast<double>(bytes) * share)) + kSmallTensors;
}

Bytes with_margin(Bytes bytes, double share) {
  return with_share(bytes, share) + std::min(kScratchMargin, bytes / 4);
}

UnitCost larger_of(const UnitCost& a, const UnitCost& b) {
  return {.forward = std::max(a.forward, b.forward),
          .backward = std::max(a.backward, b.backward),
          .saved = std::max(a.saved, b.saved),
          .source = std::max(a.source, b.source)};
}

UnitCost margined(const UnitCost& cost, CostSource source) {
  const double share = source == CostSource::kMeasured ? kMeasuredMargin : kFittedMargin;
  return {.forward = with_margin(cost.forward, share),
          .backward = with_margin(cost.backward, share),
          .saved = with_share(cost.saved, share),
          .source = source};
}

UnitCost cost_of(const ProbeTrace& trace) {
  return {.forward = trace.forward, .backward = most_of(trace.backward), .saved = trace.saved};
}

}  // namespace

ProbeTrace larger_of(const ProbeTrace& a, const ProbeTrace& b) {
  ProbeTrace both = {.forward = std::max(a.forward, b.forward),
                     .saved = std::max(a.saved, b.saved),
                     .backward = {},
                     .too_large = a.too_large || b.too_large};
  if (a.backward.size() == b.backward.size()) {
    for (size_t i = 0; i < a.backward.size(); ++i) {
      both.backward.push_back(std::max(a.backward[i], b.backward[i]));
    }
  } else {
    both.backward = {std::max(most_of(a.backward), most_of(b.backward))};
  }
  return both;
}

LinearFit::LinearFit(std::span<const Point> points) {
  LONGSHORE_CHECK(!points.empty());
  bool grows = false;
  const auto slope = [](Bytes more, int64_t by) {
    return static_cast<double>(more) / static_cast<double>(by);
  };
  for (const Point& a : points) {
    for (const Point& b : points) {
      if (b.positions > a.positions && b.document == a.document) {
        per_position_ =
            std::max(per_position_, slope(b.bytes - a.bytes, b.positions - a.positions));
        grows = true;
      }
      if (b.positions == a.positions && b.document > a.document) {
        per_document_ = std::max(per_document_, slope(b.bytes - a.bytes, b.document - a.document));
      }
    }
  }
  // Without two comparable points all memory is taken to grow with positions.
  if (!grows) {
    for (const Point& point : points) {
      per_position_ = std::max(per_position_, slope(point.bytes, point.positions));
    }
  }
  for (const Point& point : points) {
    base_ = std::max(base_, static_cast<double>(point.bytes) -
                                per_position_ * static_cast<double>(point.positions) -
                                per_document_ * static_cast<double>(point.document));
  }
}

Bytes LinearFit::at(int64_t positions, int64_t document) const {
  return static_cast<Bytes>(std::ceil(base_ + per_position_ * static_cast<double>(positions) +
                                      per_document_ * static_cast<double>(document)));
}

WorkspaceFit::WorkspaceFit(UnitWork work, const MicroBatchShape& run,
                           std::vector<ProbeSample> samples)
    : work_(std::move(work)), run_(run) {
  for (int32_t kind = 0; kind < static_cast<int32_t>(work_.documents.size()); ++kind) {
    std::vector<ProbeSample> own;
    for (const ProbeSample& sample : samples) {
      if (sample.input.kind == kind) own.push_back(sample);
    }
    if (own.empty()) continue;  // no input of this kind could run
    kinds_.push_back(fit_kind(own));
  }
  LONGSHORE_CHECK(!kinds_.empty());
}

UnitCost WorkspaceFit::at(const MicroBatchShape& shape) const {
  UnitCost cost;
  for (const Kind& kind : kinds_) cost = larger_of(cost, cost_at(kind, shape));
  return cost;
}

UnitCost WorkspaceFit::cost_at(const Kind& kind, const MicroBatchShape& shape) const {
  const bool within =
      shape.positions <= run_.positions && shape.longest_document <= run_.longest_document;
  const int64_t document = document_of(work_, kind.kind, shape);
  UnitCost cost = {.forward = kind.forward.at(shape.positions, document),
                   .saved = kind.saved.at(shape.positions, document)};
  for (const LinearFit& phase : kind.backward) {
    cost.backward = std::max(cost.backward, phase.at(shape.positions, document));
  }
  cost = margined(cost, CostSource::kFitted);
  if (!kind.whole.empty() && within) {
    const UnitCost measured = margined(cost_of(kind.whole.front()), CostSource::kMeasured);
    // No smaller micro-batch needs more than the run's own shape, which was measured.
    if (shape == run_) cost = measured;
    cost.forward = std::min(cost.forward, measured.forward);
    cost.backward = std::min(cost.backward, measured.backward);
    cost.saved = std::min(cost.saved, measured.saved);
  }
  for (const ProbeSample& sample : kind.too_large) {
    if (shape.positions < sample.input.positions || document < sample.input.document) continue;
    UnitCost most = cost_of(sample.trace);
    most.source = CostSource::kTooLarge;
    cost = larger_of(cost, most);
  }
  return cost;
}

WorkspaceFit::Kind WorkspaceFit::fit_kind(std::span<const ProbeSample> all) const {
  std::vector<ProbeSample> samples, too_large;
  for (const ProbeSample& sample : all) {
    (sample.trace.too_large ? too_large : samples).push_back(sample);
  }
  if (samples.empty()) samples = too_large;  // no smaller sample exists
  const auto points = [&](const auto& bytes) {
    std::vector<LinearFit::Point> list;
    for (const ProbeSample& sample : samples) {
      list.push_back({sample.input.positions, sample.input.document, bytes(sample.trace)});
    }
    return LinearFit(list);
  };
  Kind kind{.kind = samples.front().input.kind,
            .forward = points([](const ProbeTrace& trace) { return trace.forward; }),
            .saved = points([](const ProbeTrace& trace) { return trace.saved; }),
            .backward = {},
            .whole = {},
            .too_large = std::move(too_large)};
  const size_t phases = samples.front().trace.backward.size();
  const bool alike = std::ranges::all_of(
      samples, [&](const ProbeSample& sample) { return sample.trace.backward.size() == phases; });
  if (!alike) {
    kind.backward.push_back(
        points([](const ProbeTrace& trace) { return most_of(trace.backward); }));
  }
  for (size_t phase = 0; alike && phase < phases; ++phase) {
    kind.backward.push_back(
        points([phase](const ProbeTrace& trace) { return trace.backward[phase]; }));
  }
  for (const ProbeSample& sample : samples) {
    const ProbeInput& input = sample.input;
    if (input.positions == run_.positions &&
        input.document == document_of(work_, input.kind, run_)) {
      kind.whole = {sample.trace};
    }
  }
  return kind;
}

}  // namespace longshore
