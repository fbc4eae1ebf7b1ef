// probe_inputs: the inputs on which a unit runs to measure its memory. Values and pure functions of
// shapes alone, independent of the machine's speed or load.
//
// A unit's worst inputs are micro-batches whose documents have one of a few lengths (see
// UnitCode::worst_documents) and whose positions are all trained. Each kind runs on small shapes,
// from which a fit serves all other shapes (probe/workspace_fit.h), and on the run's own shape
// where that takes seconds; the measurement then replaces the fit.
#pragma once

#include <cstdint>
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

}  // namespace longshore
