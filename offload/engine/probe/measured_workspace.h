// MeasuredWorkspace: memory that each unit needs beyond the engine's buffers, measured by running
// every distinct unit (see [Note: measured workspace] in model/unit.h). It serves all plans of a
// run. Made by one thread before the plan; a value afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/units/unit.h"
#include "offload/engine/probe/unit_probe.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// gpu_scratch: memory of GPU kernels that no probe measured: on a GPU that is not installed, or for
// document lengths other than those that were run. Pure functions.
//
// The deterministic backward of FlashAttention (PyTorch's mha_varlen_bwd) allocates fp32 sums of
// the queries' gradients, one set per processor that the heads and documents of a call leave idle,
// with 128 rows of padding per document, and gradients of keys and values for all heads in 2 bytes.
// gpu_attention.h gives the number of documents per call.

// Streaming multiprocessors of the largest GPU that is planned for without probing it: 82 on an RTX
// 3090, 108 on an A100, 128 on an RTX 4090, 132 on an H100, 170 on an RTX 5090, 188 on an RTX PRO
// 6000.
inline constexpr int64_t kMostProcessors = 188;

// The parts of a unit whose memory differs on a GPU.
struct GpuWork {
  AttentionHeads attention;
  int64_t positions_at_once = 0;  // positions in one chunk of a head
  Bytes of_position = 0;          // bytes of one position in a chunk
};
GpuWork gpu_work(const UnitCode& unit, DType compute);

// Returns the bytes of a head's chunk on a GPU, which is larger than on the CPU.
Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions);

// Returns the largest scratch over all splits of at most `positions` positions into documents of at
// most `longest_document`. 0 without attention.
Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document,
                  int64_t processors);
// Returns by how much that exceeds the scratch for equal documents of one of these lengths.
Bytes gpu_scratch_beyond(const AttentionHeads& attention, int64_t positions,
                         int64_t longest_document, const std::vector<int64_t>& documents,
                         int64_t processors);

struct ProbeOptions {
  ProbeDevice device = {};
  bool elsewhere = false;    // the run's device is not installed: costs are estimates
  int threads = 1;           // compute threads of the process
  MicroBatchShape run = {};  // the run's largest micro-batch
  WholeShape whole = WholeShape::kWhereSeconds;
  // Host memory that the probe may use. A unit that needs more cannot run either, so it is skipped.
  Bytes memory = std::numeric_limits<Bytes>::max();
  // The directory for measurements and the identity of this program; empty: no cache.
  std::string cache = {};
  std::string program = {};
  // Called with the unit's name when its run has taken two seconds, on the caller's thread.
  std::function<void(const std::string&)> on_slow = {};
};

class MeasuredWorkspace {
 public:
  MeasuredWorkspace(const Model& model, const ProbeOptions& options);

  // Returns the costs; the function outlives this object and the model.
  UnitCosts costs() const;

  // text() is this rank's measurements; take_largest() replaces them with the maxima over all
  // ranks, whose model and options must be equal.
  std::string text() const;
  void take_largest(const std::vector<std::string>& texts);

  // Number of distinct units that were run and the seconds that took; the others were cached.
  int units_run() const { return units_run_; }
  double seconds() const { return seconds_; }

 private:
  struct Distinct {
    UnitId unit;
    UnitWork work;
    GpuWork gpu;
    std::vector<ProbeSample> samples;  // empty: it was not run
    Bytes gradients = 0;               // of its parameters, in the compute dtype
  };
  void measure(const Model& model, Distinct& distinct, const std::string& identity);

  ProbeOptions options_;
  std::vector<Distinct> distinct_;
  std::vector<size_t> of_unit_;  // by unit: index into distinct_
  int units_run_ = 0;
  double seconds_ = 0.0;
};

// Measures a custom model without a cache.
UnitCosts unit_costs(const Model& model, DType compute, int threads, const MicroBatchShape& run);

}  // namespace longshore
