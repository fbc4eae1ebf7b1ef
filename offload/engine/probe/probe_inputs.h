// probe_inputs: the inputs on which a unit runs to measure its memory. Values and pure functions of
// shapes alone, independent of the machine's speed or load. OneUnitModel is the model that runs the
// unit alone on them.
//
// A unit's worst inputs are micro-batches whose documents have one of a few lengths (see
// UnitTraits::documents) and whose positions are all trained. Each kind runs on small shapes,
// from which a fit serves all other shapes (WorkspaceFit), and on the run's own shape
// where that takes seconds; the measurement then replaces the fit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/units/unit.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// A micro-batch: its positions, and the longest document that it may contain.
struct MicroBatchShape {
  int64_t positions = 1;
  int64_t longest_document = 1;
  bool operator==(const MicroBatchShape&) const = default;
};

struct ProbeInput {
  int32_t kind = 0;       // index into UnitWork::documents
  int64_t positions = 1;  // of the micro-batch
  int64_t document = 1;   // length of every document; the last may be shorter
  int64_t trained = 1;    // positions with a target
  bool operator==(const ProbeInput&) const = default;
};

// The properties that determine a unit's run time and its worst inputs.
struct UnitWork {
  double matrix_elements = 0.0;    // of matrix parameters, including tied ones
  double widest_carry = 0.0;       // elements per position, input or output
  int64_t positions_at_once = 0;   // chunk of a head on its device; 0: all
  std::vector<int64_t> documents;  // by kind, for the run's longest document first
};

UnitWork unit_work(const Model& model, UnitId unit, int64_t longest_document, DeviceKind device);

// Estimates the seconds of forward twice and backward once at `flops` operations per second.
double probe_seconds(const UnitWork& work, const ProbeInput& input, double flops);

// Returns the document length of a kind in micro-batches of `shape`.
int64_t document_of(const UnitWork& work, int32_t kind, const MicroBatchShape& shape);

// When the run's own shape is probed.
enum class WholeShape : uint8_t {
  kWhereSeconds,  // if that takes seconds
  kAlways,        // always
};

// Returns the inputs to run, small ones first. `flops` is the rough speed of the device per second.
std::vector<ProbeInput> probe_inputs(const UnitWork& work, const MicroBatchShape& run, double flops,
                                     WholeShape whole = WholeShape::kWhereSeconds);

// OneUnitModel: a model reduced to one unit with stand-ins before and behind it, so that the
// engine's UnitRunner runs it alone. The stand-in before owns the unit's tied parameters and
// decides whether a gradient flows on; the one behind takes the output. Owned by the probe; the
// model outlives it.

class OneUnitModel : public Model {
 public:
  OneUnitModel(const Model& model, UnitId unit);

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override;
  RouterShape routers() const override { return model_.routers(); }

  // Returns the id of the probed unit in this model.
  UnitId probed() const { return probed_; }
  bool probes_loss() const { return spec_.units.back().id == probed_; }
  bool has_backward() const { return has_backward_; }
  // Units with equal text need equal memory; empty (code without a signature): the unit is unique.
  std::string identity(DType compute) const;

 private:
  class Silent;
  class SilentLoss;

  const Model& model_;
  UnitId real_;
  UnitId probed_;
  bool has_backward_ = false;
  ModelSpec spec_;
  std::unique_ptr<Unit> before_;
  std::unique_ptr<LossUnit> behind_;
};

// WorkspaceFit: extrapolates a unit's memory from runs on a few inputs to any input. A pure value,
// independent of units, kernels and devices.
//
// [Note: one fit for each phase] The worst moment of a small micro-batch differs from that of a
// large one: with few positions parameter gradients dominate, all alive at the end of backward;
// with many, the activations in the middle. A trace therefore has the peak of every phase (forward,
// then each step of backward). Each phase has its own fit, linear in positions and document length,
// and the result is the maximum over phases at the requested shape.

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
