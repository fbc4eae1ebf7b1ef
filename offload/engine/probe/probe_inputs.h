// probe_inputs: the inputs on which a unit runs to measure its memory. Values and pure functions of
// shapes alone, independent of the machine's speed or load. OneUnitModel is the model that runs the
// unit alone on them.
//
// A unit's worst inputs are micro-batches whose documents have one of a few lengths (see
// UnitCode::worst_documents) and whose positions are all trained. Each kind runs on small shapes,
// from which a fit serves all other shapes (probe/workspace_fit.h), and on the run's own shape
// where that takes seconds; the measurement then replaces the fit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/unit.h"

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
  std::string identity() const;

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

}  // namespace longshore
