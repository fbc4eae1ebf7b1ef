// WorkspaceFit: extrapolates a unit's memory from runs on a few inputs to any input. A pure value,
// independent of units, kernels and devices.
//
// [Note: one fit for each phase] The worst moment of a small micro-batch differs from that of a
// large one: with few positions parameter gradients dominate, all alive at the end of backward;
// with many, the activations in the middle. A trace therefore has the peak of every phase (forward,
// then each step of backward). Each phase has its own fit, linear in positions and document length,
// and the result is the maximum over phases at the requested shape.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "offload/engine/probe/probe_inputs.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// The memory that one run took.
struct ProbeTrace {
  Bytes forward = 0;  // peak of forward without a graph
  Bytes saved = 0;    // bytes of a kept graph between forward and backward
  // The peak of each phase of forward with a graph and of backward. Empty: no backward.
  std::vector<Bytes> backward;
  // The device ran out of memory; the values are at least its whole memory.
  bool too_large = false;
};

struct ProbeSample {
  ProbeInput input;
  ProbeTrace trace;
};

// Returns the maximum of each value. Phases that do not correspond are merged into one.
ProbeTrace larger_of(const ProbeTrace& a, const ProbeTrace& b);

// bytes = base + per_position * positions + per_document * document length, an upper bound.
class LinearFit {
 public:
  struct Point {
    int64_t positions = 0, document = 0;
    Bytes bytes = 0;
  };
  explicit LinearFit(std::span<const Point> points);
  // Returns at least the bytes of every point at its own coordinates.
  Bytes at(int64_t positions, int64_t document) const;

 private:
  double base_ = 0.0, per_position_ = 0.0, per_document_ = 0.0;
};

class WorkspaceFit {
 public:
  // `samples` are of all kinds, for runs with micro-batches of `run`.
  WorkspaceFit(UnitWork work, const MicroBatchShape& run, std::vector<ProbeSample> samples);
  // Returns the cost with margins; kMeasured for the run's own shape if all kinds were run on it.
  UnitCost at(const MicroBatchShape& shape) const;

 private:
  struct Kind {
    int32_t kind = 0;
    LinearFit forward, saved;
    std::vector<LinearFit> backward;
    std::vector<ProbeTrace> whole;       // of the run's own shape: one or none
    std::vector<ProbeSample> too_large;  // not part of any fit
  };
  Kind fit_kind(std::span<const ProbeSample> samples) const;
  UnitCost cost_at(const Kind& kind, const MicroBatchShape& shape) const;

  UnitWork work_;
  MicroBatchShape run_;
  std::vector<Kind> kinds_;
};

}  // namespace longshore
