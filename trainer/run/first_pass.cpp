#include "trainer/run/first_pass.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/log.h"

namespace longshore {

void check_first_pass(const PlanInputs& inputs, const TierPlan& plan,
                      const DeviceMemory::Usage& usage, std::span<const HostBatch> batches) {
  if (plan.device.workspace_source == CostSource::kMeasured || batches.empty()) return;
  int64_t positions = 1, longest = 1;
  for (const HostBatch& batch : batches) {
    positions = std::max(positions, std::ssize(batch.tokens));
    for (size_t i = 1; i < batch.document_starts.size(); ++i) {
      longest = std::max(longest, batch.document_starts[i] - batch.document_starts[i - 1]);
    }
  }
  const Workspace expected =
      workspace_of(*inputs.model, inputs.costs(positions, longest), plan.step.kept_graphs);
  const auto allowed = static_cast<double>(expected.worst + expected.saved * std::ssize(batches));
  const auto taken = static_cast<double>(usage.workspace.tensors_peak);
  if (taken <= allowed) return;
  const auto full = static_cast<Bytes>(
      std::ceil(static_cast<double>(plan.device.workspace) * (taken / std::max(1.0, allowed))));
  const std::string what = "the first pass took " + format_bytes(usage.workspace.tensors_peak) +
                           " of temporaries for " + std::to_string(positions) +
                           " positions, the plan says " +
                           format_bytes(static_cast<Bytes>(allowed)) + " (" +
                           std::string(name_of(plan.device.workspace_source)) + ")";
  if (plan.device.owned + full <= plan.device.limit) {
    log_warning(what + "; it still fits");
    return;
  }
  throw OutOfMemoryError(what + ": full micro-batches of " + std::to_string(plan.step.positions) +
                         " positions will take " + format_bytes(plan.device.owned + full) +
                         " of the device's " + format_bytes(plan.device.limit) +
                         "; nothing was updated; raise offload.device_memory or lower "
                         "train.micro_batch or data.max_tokens");
}

}  // namespace longshore
