// ProbeInputs: on which inputs a unit is run to learn what memory it takes. A value; pure functions
// that depend on shapes alone, never on how fast or busy the machine is.
//
// A unit's worst inputs are micro-batches whose documents all have one of a few lengths (see
// UnitCode::worst_documents), with every position trained. Each such kind is run on small shapes,
// which a fit serves every other shape from (probe/workspace_fit.h), and on the run's own shape
// where that takes seconds; then the fit is not asked for it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/unit.h"

namespace longshore {

// A micro-batch: its positions, and the longest document that may be in one.
struct MicroBatchShape {
  int64_t positions = 1;
  int64_t longest_document = 1;
  bool operator==(const MicroBatchShape&) const = default;
};

struct ProbeInput {
  int32_t kind = 0;       // of documents: index into UnitWork::documents
  int64_t positions = 1;  // of the micro-batch
  int64_t document = 1;   // length of every document; the last may be shorter
  int64_t trained = 1;    // positions with a target
  bool operator==(const ProbeInput&) const = default;
};

// What decides how long a unit takes and which inputs are its worst.
struct UnitWork {
  double matrix_elements = 0.0;    // of the parameters that are matrices, tied ones too
  double widest_carry = 0.0;       // elements a position, in or out
  int64_t positions_at_once = 0;   // of a head, on the device it is run on; 0: all
  std::vector<int64_t> documents;  // kinds, for the run's longest document first
};

UnitWork unit_work(const Model& model, UnitId unit, int64_t longest_document, DeviceKind device);

// Seconds that a unit takes on an input, forward twice and backward once, where `flops` a second
// are done. A rough estimate.
double probe_seconds(const UnitWork& work, const ProbeInput& input, double flops);

// The documents' length of a kind in micro-batches of `shape`.
int64_t document_of(const UnitWork& work, int32_t kind, const MicroBatchShape& shape);

// Whether the run's own shape is run.
enum class WholeShape : uint8_t {
  kWhereSeconds,  // where that takes seconds
  kAlways,        // however long it takes
};

// The inputs to run, the small ones first. `flops`: what the device does in a second, roughly.
std::vector<ProbeInput> probe_inputs(const UnitWork& work, const MicroBatchShape& run, double flops,
                                     WholeShape whole = WholeShape::kWhereSeconds);

}  // namespace longshore
