// TierPlan: every byte on every tier, fixed before anything is allocated. A pure function of the
// model, the run file's choices and the machine; plain values afterwards.
//
// Device buffers, by name:
//   slot.<i>                   a gathered unit in the compute dtype; with shard_grad_op unit i,
//                              else of the largest unit's size
//   gradient.<i>               fp32 gradients of a unit, from its backward until they are home
//   waiting_gradient.<unit>    the same for a unit that lends a parameter: its gradients come in
//                              parts
//   reduce_scratch             what a sum over ranks needs beside the gradients
//   drain_staging              gradients cast for the copy down; absent when drained in fp32
//   batch                      tokens, positions and targets of the step's micro-batches
//   input.<unit>               the unit's kept input: equal parts, one for each micro-batch
//   input_slot.<i>             the same, where inputs are offloaded: unit u has slot u mod slots
//   output_gradient            what flows back: equal parts, one for each micro-batch
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/device_kind.h"
#include "nvme/probe/drive_room.h"
#include "nvme/probe/drive_wear.h"
#include "nvme/store/nvme_inputs.h"
#include "nvme/store/nvme_store.h"
#include "offload/plan/machine.h"
#include "offload/plan/unit_costs.h"
#include "offload/schedule/step_schedule.h"
#include "shard/shard_topology.h"
#include "shard/state_format.h"
#include "shard/unit_spec.h"

namespace longshore {

// The disk tier of a run; not used where there are no directories.
struct NvmeTier {
  std::vector<std::string> directories;  // one per drive
  // What lives there: master and moments; parameters, with them only; kept inputs.
  bool state = false;
  bool parameters = false;
  bool inputs = false;
  Geometry geometry = {};                       // weights of 0: equal stripes
  int depth = 32;                               // chunks in flight on each drive
  int versions = 2;                             // of the state; 1: no step is durable
  int64_t checkpoint_steps = 0;                 // between checkpoints; 0: none on the way
  std::vector<std::optional<DriveRoom>> rooms;  // by drive; empty: nobody asked
  // How long the drives last; for whoever prints the plan, no part of it depends on them.
  std::optional<Bytes> rated_writes;           // of each drive's life; offload.nvme_tbw
  std::vector<std::optional<DriveWear>> wear;  // by drive, as they say; empty: nobody asked
  std::optional<double> seconds_per_step;      // of this run so far, measured

  bool used() const { return state || inputs; }
};

// How a unit's shards come together on the device.
enum class GatherMode : uint8_t {
  kCollective,  // each rank copies its own, a collective does the rest
  kHost,        // each rank copies all of them, from the memory of the machine's ranks
};

// The same model in other units, to say what they would cost.
struct OtherUnits {
  std::string name;  // as the run file would have it: "\"half\""
  std::shared_ptr<const ModelSpec> model;
  UnitCosts costs;
};

struct PlanInputs {
  const ModelSpec* model = nullptr;  // must outlive the call
  UnitCosts costs;
  StateOptions state;
  ShardTopology topology;
  int32_t ranks_per_node = 1;      // that share a node's memory
  DType reduce = DType::kF32;      // what gradients travel as between ranks
  int64_t sequences_per_step = 1;  // over all ranks
  int64_t micro_batch = 1;         // sequences
  int64_t max_tokens = 1;          // per sequence
  int64_t prefetch = 1;
  bool recompute = true;
  bool keep_what_fits = false;  // with recompute: graphs of as many of the last units as fit
  int32_t kept_graphs = 0;      // with recompute, else all: of so many units before the loss
  bool offload_inputs = false;  // kept inputs leave the device, for the host or nvme.inputs
  UpdateOverlap overlap = UpdateOverlap::kForward;
  GatherMode gather = GatherMode::kCollective;  // kHost only where can_gather_on_host()
  DeviceKind device = DeviceKind::kCpu;
  NvmeTier nvme;
  int64_t steps = 0;                // of the run; 0: not known
  std::optional<Bytes> device_cap;  // nullopt = auto
  std::optional<Bytes> host_cap;    // nullopt = auto
  int compute_threads = 1;
  int optimizer_threads = 1;
  Bytes data_bytes = 0;             // what the training data keeps in host memory, estimated
  std::string units = "\"block\"";  // as the run file has them, for messages
  std::vector<OtherUnits> other_units;
};

struct PlannedBuffer {
  std::string name;
  Bytes bytes = 0;  // a multiple of kDeviceBufferAlignment
};

// A line of the plan's account.
struct PlanLine {
  std::string name;
  std::string detail;
  Bytes bytes = 0;
  bool exact = true;  // else a bound or an estimate
};

// What one step moves, on one rank. Payloads are what the rank hands to collectives.
struct StepTraffic {
  Bytes h2d = 0;
  Bytes d2h = 0;
  Bytes all_gather = 0;          // whole gathered units
  Bytes reduce_scatter = 0;      // whole gradients, in the reduce dtype
  Bytes all_reduce = 0;          // own parts of gradients, over replicas
  Bytes update_dram = 0;         // read and written by the update
  Bytes nvme_read = 0;           // of state, kept inputs, and parameters
  Bytes nvme_written = 0;        // of state and kept inputs: the commit adds a few blocks
  double flops_per_token = 0.0;  // estimate: 6 per parameter, 8 with recompute
};

// What a plan in other units has more than this one.
struct UnitsDifference {
  std::string name;
  bool fits = false;
  Bytes device = 0, host = 0;
  Bytes moved = 0;  // by a step, between host and device, and to and from drives
};

struct TierPlan {
  DeviceKind device = DeviceKind::kCpu;
  StateOptions state;
  int compute_threads = 1;
  int optimizer_threads = 1;
  int64_t parameters = 0;  // elements
  int64_t trainable = 0;
  int32_t slots = 0;
  ShardTopology topology;
  DType reduce = DType::kF32;
  GatherMode gather = GatherMode::kCollective;
  PassSchedules schedules;
  int32_t gradient_buffers = 1;
  int32_t gradient_ring = 0;  // > 0: gradients at home take turns in so many places
  int32_t input_slots = 0;    // > 0: kept inputs are offloaded through so many
  UpdateOverlap overlap = UpdateOverlap::kForward;
  int64_t micro_batches = 0;  // of a step, on one rank at most
  int64_t positions = 0;      // of a micro-batch, at most
  int32_t kept_graphs = 0;    // of so many units before the loss; the others are recomputed

  std::vector<PlannedBuffer> device_buffers;  // sums to device_owned
  Bytes device_owned = 0;
  Bytes device_workspace = 0;
  std::string workspace_unit;                           // which takes most, "block.3 backward"
  CostSource workspace_source = CostSource::kMeasured;  // the least sure of all units'
  Bytes device_total = 0;
  Bytes device_cap = 0;  // auto on the CPU device: device_total
  bool device_cap_auto = false;
  std::vector<PlanLine> device_lines;  // sums to device_total

  NvmeTier nvme;
  std::vector<Bytes> nvme_files;  // of one rank, by drive: all versions of the state, and inputs
  // What a step writes to each drive, by all ranks of the node.
  std::vector<Bytes> nvme_drive_writes;
  int64_t steps = 0;           // of the run; 0: not known
  Bytes checkpoint_bytes = 0;  // what all ranks write to one together, headers aside

  Bytes host_arena = 0;      // the store of parameters and state, exact
  Bytes host_gradients = 0;  // GradientHome, exact
  // By unit: its kept input of all micro-batches where it is offloaded; 0: it stays.
  std::vector<Bytes> offloaded_inputs;
  Bytes offloaded_inputs_total() const;
  Bytes host_inputs = 0;  // the same on the host, or what stages them for the drives; exact
  Bytes host_total = 0;
  Bytes host_limit = 0;
  bool host_limit_auto = false;
  Bytes host_machine = 0;  // the rank's part of what the machine or its cgroup has; 0: not known
  std::vector<PlanLine> host_lines;  // sums to host_total

  StepTraffic step;
  std::vector<UnitsDifference> other_units;  // filled in by compare_units

  // A cap that the machine does not have would be no cap.
  bool host_cap_is_there() const {
    return host_limit_auto || host_machine == 0 || host_limit <= host_machine;
  }
  Bytes drives_short = 0;  // what the files on the drives need beyond what is free there
  bool fits() const {
    return device_total <= device_cap && host_total <= host_limit && host_cap_is_there() &&
           drives_short == 0;
  }
  // The buffer of that name; nullptr when the plan has none.
  const PlannedBuffer* buffer(const std::string& name) const;
};

// What the rank's store on drives is made with; `run` tells the state of one run from another's.
NvmeStoreOptions nvme_options(const NvmeTier& tier, const StateOptions& state,
                              const ShardTopology& topology, Rank rank, const RunKey& run);

// The same for kept inputs on the drives: those that the train pass saves and writes.
NvmeInputOptions nvme_input_options(const NvmeTier& tier, const StepSchedule& train,
                                    int64_t micro_batches, Rank rank);

// Why units cannot be gathered on the host: the key and what is wrong; empty where they can be.
std::string why_not_on_host(const PlanInputs& inputs);

// The plan, whether it fits or not. Throws DoesNotFitError only for sizes beyond counting.
TierPlan draft_tier_plan(const PlanInputs& inputs, const Machine& machine);

// The plan; throws DoesNotFitError, with the arithmetic and the keys to change, when it does not
// fit.
TierPlan make_tier_plan(const PlanInputs& inputs, const Machine& machine);

// Fills in plan.other_units, where the inputs have any.
void compare_units(TierPlan& plan, const PlanInputs& inputs, const Machine& machine);

// Why the plan does not fit, and what each key would gain; empty when it does.
std::string explain_misfit(const PlanInputs& inputs, const Machine& machine);

}  // namespace longshore
