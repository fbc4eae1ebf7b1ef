// WorkspaceFit: from a unit's runs on a few inputs to what it takes on any. A value, pure; it knows
// nothing of units, kernels or devices.
//
// [Note: one fit for each phase] The worst moment of a small micro-batch is not that of a large
// one: with few positions the gradients of the parameters are most of it, all there at the end of
// backward, with many it is the activations in the middle. So a trace has the peak of every phase
// (forward, then each step of backward), every phase gets a fit of its own, linear in positions and
// in the documents' length, and the worst of the phases is taken at the shape in question.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "offload/engine/probe/probe_inputs.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// What one run took.
struct ProbeTrace {
  Bytes forward = 0;  // most at any moment of a forward without a graph
  Bytes saved = 0;    // what a kept graph holds between forward and backward
  // Most at any moment of each phase of forward with a graph and backward. Empty: no backward.
  std::vector<Bytes> backward;
  // The device had not the memory: figures are no less than all that it has.
  bool too_large = false;
};

struct ProbeSample {
  ProbeInput input;
  ProbeTrace trace;
};

// The larger of each figure. Phases that do not correspond become one.
ProbeTrace larger_of(const ProbeTrace& a, const ProbeTrace& b);

// bytes = base + per_position * positions + per_document * length of the documents, at least.
class LinearFit {
 public:
  struct Point {
    int64_t positions = 0, document = 0;
    Bytes bytes = 0;
  };
  explicit LinearFit(std::span<const Point> points);
  // No less than any of the points at its place.
  Bytes at(int64_t positions, int64_t document) const;

 private:
  double base_ = 0.0, per_position_ = 0.0, per_document_ = 0.0;
};

class WorkspaceFit {
 public:
  // Samples of all kinds, for runs with micro-batches of `run`.
  WorkspaceFit(UnitWork work, const MicroBatchShape& run, std::vector<ProbeSample> samples);
  // With the margins; kMeasured for the run's own shape where that was run for every kind.
  UnitCost at(const MicroBatchShape& shape) const;

 private:
  struct Kind {
    int32_t kind = 0;
    LinearFit forward, saved;
    std::vector<LinearFit> backward;
    std::vector<ProbeTrace> whole;       // of the run's own shape: one or none
    std::vector<ProbeSample> too_large;  // in no fit
  };
  Kind fit_kind(std::span<const ProbeSample> samples) const;
  UnitCost cost_at(const Kind& kind, const MicroBatchShape& shape) const;

  UnitWork work_;
  MicroBatchShape run_;
  std::vector<Kind> kinds_;
};

}  // namespace longshore
