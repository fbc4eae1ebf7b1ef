#include "offload/plan/drive_plan.h"

#include <algorithm>
#include <map>

namespace longshore {
namespace {

// Drives without a measured speed get equal shares.
Geometry geometry_of(const NvmeTier& tier) {
  Geometry geometry = tier.geometry;
  for (size_t i = 0; i < tier.directories.size(); ++i) {
    geometry.weights.at(i) = std::max(geometry.weights[i], uint32_t{1});
  }
  return geometry;
}

// Adds files that a step of each of the node's ranks writes `written` bytes to. Writes are striped
// in proportion to the files' sizes.
void add_files(DrivePlan& plan, const StripeMap& map, Bytes written, int32_t ranks) {
  Bytes files = 0;
  for (int i = 0; i < map.drives(); ++i) files += map.file_bytes(i);
  for (size_t i = 0; i < plan.files.size(); ++i) {
    const Bytes file = map.file_bytes(static_cast<int>(i));
    plan.files[i] += file;
    const double share = static_cast<double>(file) / static_cast<double>(files);
    plan.step_writes[i] += static_cast<Bytes>(share * static_cast<double>(written) * ranks);
  }
}

// Directories on one file system share its free space.
Bytes missing_on_drives(const DrivePlan& plan, int32_t ranks) {
  std::map<uint64_t, Bytes> left;
  for (size_t i = 0; i < plan.files.size() && i < plan.tier.rooms.size(); ++i) {
    const std::optional<DriveRoom>& room = plan.tier.rooms[i];
    if (!room) continue;
    Bytes& bytes = left.try_emplace(room->file_system, room->free).first->second;
    bytes += room->held - plan_product({ranks, plan.files[i]});
  }
  Bytes missing = 0;
  for (const auto& [file_system, bytes] : left) missing += std::max<Bytes>(0, -bytes);
  return missing;
}

}  // namespace

DrivePlan plan_drives(const PlanSizes& sizes, const StepPlan& step) {
  const PlanInputs& inputs = sizes.inputs();
  const int32_t ranks = inputs.ranks_per_node;
  DrivePlan plan;
  if (!inputs.nvme.used()) return plan;
  plan.tier = inputs.nvme;
  plan.files.resize(plan.tier.directories.size());
  plan.step_writes.resize(plan.tier.directories.size());
  if (plan.tier.state) {
    const NvmeStoreOptions options =
        nvme_options(plan.tier, inputs.state, inputs.topology, Rank(0), {});
    add_files(plan, NvmeStore::make_map(sizes.layouts(), options), step.moved(OpKind::kWriteState),
              ranks);
  }
  if (plan.tier.inputs && step.offloaded_inputs_total() > 0) {
    const NvmeInputOptions options =
        nvme_input_options(plan.tier, step.schedules.train, step.micro_batches, Rank(0));
    add_files(plan, NvmeInputs::make_map(options), step.moved(OpKind::kWriteInput), ranks);
  }
  plan.missing = missing_on_drives(plan, ranks);
  return plan;
}

NvmeInputOptions nvme_input_options(const NvmeTier& tier, const StepSchedule& train,
                                    int64_t micro_batches, Rank rank) {
  NvmeInputOptions options = {.micro_batches = micro_batches,
                              .geometry = geometry_of(tier),
                              .drives = static_cast<int>(tier.directories.size()),
                              .rank = rank.value};
  for (const Op& op : train.ops) {
    if (op.kind == OpKind::kSaveInput) options.saved.push_back({op.unit, op.bytes});
    if (op.kind == OpKind::kWriteInput) options.written.push_back(op.unit);
  }
  return options;
}

NvmeStoreOptions nvme_options(const NvmeTier& tier, const StateOptions& state,
                              const ShardTopology& topology, Rank rank, const RunKey& run) {
  NvmeStoreOptions options;
  options.state = state;
  options.parameters_on_drives = tier.parameters;
  options.run = run;
  options.rank = rank.value;
  options.ranks = topology.ranks;
  options.drives = static_cast<int>(tier.directories.size());
  options.versions = tier.versions;
  options.geometry = geometry_of(tier);
  return options;
}

}  // namespace longshore
