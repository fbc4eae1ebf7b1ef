// PlanInputs: all that a plan is made from, in plain values. plan_from_config.h reads most of them
// from the run file; drives' rooms, geometry and the units' costs are measured and filled in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/device_kind.h"
#include "nvme/parts/stripe_map.h"
#include "nvme/probe/drive_room.h"
#include "nvme/probe/drive_wear.h"
#include "offload/plan/unit_costs.h"
#include "offload/schedule/step_schedule.h"
#include "shard/policy.h"
#include "shard/shard_topology.h"
#include "shard/state_format.h"
#include "shard/unit_spec.h"

namespace longshore {

// The disk tier of a run; not used where there are no directories.
struct NvmeTier {
  std::vector<std::string> directories;  // one per drive
  // What lives there: master and moments; parameters, with them only; activation checkpoints.
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

// The run's model in other units, to say what they would cost.
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
  bool offload_inputs =
      false;  // activation checkpoints leave the device, for the host or nvme.inputs
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

// Why units cannot be gathered on the host: the key and what is wrong; empty where they can be.
std::string why_not_on_host(const PlanInputs& inputs);

}  // namespace longshore
