// PlanInputs: all inputs of a plan, in plain values. plan_from_config.h reads most of them from the
// run file; free space and geometry of drives and units' costs are measured and filled in.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/loss_kind.h"
#include "device/device_kind.h"
#include "nvme/parts/stripe_map.h"
#include "nvme/probe/drive_probe.h"
#include "offload/schedule/step_schedule.h"
#include "shard/policy.h"
#include "shard/shard_topology.h"
#include "shard/state_format.h"
#include "shard/unit_spec.h"

namespace longshore {

// UnitCosts: memory of LibTorch's temporaries by unit, and for the whole model. Values and pure
// functions, independent of the source of the numbers.

// The certainty of a cost, from high to low.
enum class CostSource : uint8_t {
  kMeasured,   // by running the unit on its worst inputs
  kFitted,     // to runs on smaller inputs
  kEstimated,  // on another kind of device, or without a run
  kTooLarge,   // the device ran out of memory: at least its whole memory
};
std::string_view name_of(CostSource source);  // "measured"

// The peak memory of one unit for one micro-batch.
struct UnitCost {
  Bytes forward = 0;
  Bytes backward = 0;
  Bytes saved = 0;  // between forward and backward without recompute
  CostSource source = CostSource::kMeasured;
};

// Returns the costs of every unit for micro-batches of at most `positions` positions with documents
// of at most `longest_document`. Pure.
using UnitCosts = std::function<std::vector<UnitCost>(int64_t positions, int64_t longest_document)>;

// The peak memory of a pass that keeps the graphs of the last units before the loss.
struct Workspace {
  Bytes worst = 0;                            // of the unit that runs
  std::string unit;                           // that unit, "block.3 backward"
  Bytes saved = 0;                            // of the kept graphs, of one micro-batch
  CostSource source = CostSource::kMeasured;  // the least certain of all units
};
Workspace workspace_of(const ModelSpec& model, const std::vector<UnitCost>& costs,
                       int32_t kept_graphs);

// The disk tier of a run. Its directories may be named and unused.
struct NvmeTier {
  std::vector<std::string> directories;  // one per drive
  // The contents: master and moments; parameters, only with these; activation checkpoints.
  bool state = false;
  bool parameters = false;
  bool inputs = false;
  Geometry geometry = {};                       // weights of 0: equal stripes
  int depth = 32;                               // chunks in flight on each drive
  int versions = 2;                             // of the state; 1: steps are not durable
  int64_t checkpoint_steps = 0;                 // between checkpoints; 0: only at the end
  std::vector<std::optional<DriveRoom>> rooms;  // by drive; empty: not probed
  // Life of the drives; only for printing, the plan does not depend on it.
  std::optional<Bytes> rated_writes;           // rated writes of each drive; offload.nvme_tbw
  std::vector<std::optional<DriveWear>> wear;  // by drive, as reported by it; empty: not queried
  std::optional<double> seconds_per_step;      // of this run so far, measured

  bool used() const { return state || inputs; }
};

// The run's model split into other units, to compare their costs.
struct OtherUnits {
  std::string name;  // in run file syntax: "\"half\""
  std::shared_ptr<const ModelSpec> model;
  UnitCosts costs;
};

// The dtypes in which a model's files store its frozen parameters, by name; one without an entry
// counts as bf16. Of packed ones the files' bytes are those that tiers hold.
using FrozenFiles = std::map<std::string, DType>;

// DecodeUse says what a plan keeps for decoding with states (model/units/sequence_states.h). The
// states of all sequences are on the device.
struct DecodeUse {
  int64_t sequences = 0;  // decoded at the same time; 0: the run decodes nothing
  int64_t longest = 0;    // positions of a sequence, prompt and answer together
  // Returns the bytes of the states of one sequence of at most `longest` positions.
  std::function<Bytes(int64_t longest)> sequence_bytes = {};
  // The process decodes and never trains: the plan has no memory for gradients, one micro-batch,
  // and no schedule of a train pass.
  bool alone = false;
  // Every unit has a slot of its own, so that it stays there from one call to the next.
  bool weights_stay = false;

  // Returns the bytes of the states of all sequences; 0 where nothing is decoded.
  Bytes state_bytes() const;
};

struct PlanInputs {
  const ModelSpec* model = nullptr;  // must outlive the call
  UnitCosts costs;
  StateOptions state;
  ShardTopology topology;
  int32_t ranks_per_node = 1;      // ranks that share a node's memory
  DType reduce = DType::kF32;      // dtype of gradients between ranks
  int64_t sequences_per_step = 1;  // over all ranks
  int64_t micro_batch = 1;         // sequences
  int64_t max_tokens = 1;          // of a document
  LossTraits loss;                 // of the run
  DecodeUse decode = {};
  int64_t prefetch = 1;
  bool recompute = true;
  bool keep_what_fits = false;  // with recompute: keep as many of the last units' graphs as fit
  int32_t kept_graphs = 0;      // with recompute: graphs kept before the loss; else all
  KeptResults keep_results = KeptResults::kNone;  // with recompute: of each unit
  bool offload_inputs = false;  // activation checkpoints go to the host or to nvme.inputs
  UpdateOverlap overlap = UpdateOverlap::kForward;
  GatherMode gather = GatherMode::kCollective;  // kHost only if why_not_on_host() is empty
  DeviceKind device = DeviceKind::kCpu;
  NvmeTier nvme;
  // Set: the run could read its frozen parameters from the model's files, packed or not.
  std::shared_ptr<const FrozenFiles> model_files;
  // Set: frozen parameters are read from the model's files and are in no tier. Excludes nvme.state.
  std::shared_ptr<const FrozenFiles> frozen_files;
  // With frozen_files: what else fits in host memory is filled with frozen parameters.
  bool fill_host = true;
  // With frozen_files: all frozen parameters are read once and stay in host memory.
  bool keep_frozen = false;
  int64_t steps = 0;                // of the run; 0: unknown
  Bytes export_bytes = 0;           // of the run's export without merging adapters, for the text
  std::optional<Bytes> device_cap;  // nullopt = auto
  std::optional<Bytes> host_cap;    // nullopt = auto
  std::optional<Bytes> pinned_cap;  // of host memory registered with GPUs; nullopt = auto
  // The floats that the update rule's work on a whole matrix takes; empty: it has no such work.
  std::function<int64_t(int64_t rows, int64_t columns)> matrix_scratch;
  int compute_threads = 1;
  int optimizer_threads = 1;
  Bytes data_bytes = 0;             // host memory of the training data, estimated
  std::string units = "\"block\"";  // in run file syntax, for messages
  std::vector<OtherUnits> other_units;

  int64_t sequence_tokens() const { return loss.answers * max_tokens; }
};

// The values of fsdp.recompute that keep no graphs, from the one that keeps least.
inline constexpr std::array kAllKeptResults = {KeptResults::kNone, KeptResults::kAttention,
                                               KeptResults::kHeads, KeptResults::kMiddle,
                                               KeptResults::kMlp};
// Returns the value in run file syntax: "unit" or "except-...", with its quotation marks.
std::string recompute_value(KeptResults kept);

// Returns why units cannot be gathered on the host (the key and the problem); empty if they can.
std::string why_not_on_host(const PlanInputs& inputs);

}  // namespace longshore
