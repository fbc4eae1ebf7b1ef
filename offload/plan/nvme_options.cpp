// What the parts on drives are made with, as the plan has it.
#include <algorithm>

#include "offload/plan/tier_plan.h"

namespace longshore {
namespace {

// Drives without a measured speed share equally.
Geometry geometry_of(const NvmeTier& tier) {
  Geometry geometry = tier.geometry;
  for (size_t i = 0; i < tier.directories.size(); ++i) {
    geometry.weights.at(i) = std::max(geometry.weights[i], uint32_t{1});
  }
  return geometry;
}

}  // namespace

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
