#include "offload/plan/host_plan.h"

#include "offload/plan/drive_plan.h"
#include "pinned/pinned_store.h"

namespace longshore {
namespace {

// The process itself: LibTorch's code, MKL's scratch, threads, file buffers. A small run was
// measured at 210 MiB; scratch and buffers grow with the model.
constexpr Bytes kProcessBytes = 512 * kMiB;
// The host memory of a process that uses a GPU also holds CUDA's context, LibTorch's kernels and
// cuBLASLt. This is an estimate; `host_rss` of the first run on a GPU, less the other lines of its
// plan, replaces it.
constexpr Bytes kGpuProcessHostBytes = 1536 * kMiB;

void add_line(HostPlan& plan, const char* name, const std::string& detail, Bytes bytes,
              bool exact) {
  if (bytes == 0) return;
  plan.lines.push_back({name, detail, bytes, exact});
  plan.total += bytes;
}

void add_state(HostPlan& plan, const PlanSizes& sizes) {
  const PlanInputs& inputs = sizes.inputs();
  if (inputs.nvme.state) {
    const NvmeStoreOptions options =
        nvme_options(inputs.nvme, inputs.state, inputs.topology, Rank(0), {});
    plan.arena = NvmeStore::planned_bytes(sizes.layouts(), options);
    add_line(plan, "I/O window",
             inputs.nvme.parameters ? "state in transit to and from the drives"
                                    : "state in transit, and the parameters",
             plan.arena, true);
    return;
  }
  const Bytes join = PinnedStore::planned_join_bytes(sizes.layouts(), inputs.state);
  plan.arena = PinnedStore::planned_bytes(sizes.layouts(), inputs.state);
  add_line(plan, "shards and optimizer state",
           "state_format " + std::string(name_of(inputs.state.format)) +
               (is_exact(inputs.state.format) ? "" : ", approximate moments"),
           plan.arena - join, true);
  add_line(plan, "join region", "split masters joined for fp32 compute", join, true);
}

void add_gradients(HostPlan& plan, const PlanSizes& sizes) {
  const int32_t ring = sizes.gradient_ring();
  plan.gradient_ring = ring;
  plan.gradients = sizes.host_gradient_bytes();
  const std::string dtype = sizes.inputs().state.drain == DType::kF32 ? "fp32" : "bf16";
  std::string detail = dtype + ", every unit";
  if (ring > 0) {
    detail = "ring of " + std::to_string(ring) + " x " + format_bytes(plan.gradients / ring) +
             ", " + dtype + ", the largest unit";
  }
  add_line(plan, "gradients", detail, plan.gradients, true);
}

void add_activation_checkpoints(HostPlan& plan, const PlanSizes& sizes, const StepPlan& step) {
  const NvmeTier& tier = sizes.inputs().nvme;
  plan.inputs = step.offloaded_inputs_total();
  if (plan.inputs == 0) return;
  if (!tier.inputs) {
    add_line(plan, "activation checkpoints", "offload.activations = host", plan.inputs, true);
    return;
  }
  plan.inputs = NvmeInputs::planned_bytes(
      nvme_input_options(tier, step.schedules.train, step.micro_batches, Rank(0)));
  add_line(plan, "activation checkpoints", "in transit to and from the drives", plan.inputs, true);
}

}  // namespace

HostPlan plan_host(const PlanSizes& sizes, const DevicePlan& device, const StepPlan& step,
                   const Machine& machine) {
  const PlanInputs& inputs = sizes.inputs();
  HostPlan plan;
  add_state(plan, sizes);
  add_gradients(plan, sizes);
  add_activation_checkpoints(plan, sizes, step);
  if (device.kind == DeviceKind::kCpu) {
    add_line(plan, "cpu device", "all of the device's bytes", device.total, false);
  }
  add_line(plan, "data", "estimate", inputs.data_bytes, false);
  const bool cpu = device.kind == DeviceKind::kCpu;
  add_line(
      plan, "process",
      cpu ? "estimate: libraries, scratch, threads" : "estimate: CUDA, libraries, scratch, threads",
      cpu ? kProcessBytes : kGpuProcessHostBytes, false);
  plan.limit_auto = !inputs.host_cap.has_value();
  plan.limit = inputs.host_cap.value_or(machine.host_available() / inputs.ranks_per_node);
  plan.machine = machine.host_installed() / inputs.ranks_per_node;
  return plan;
}

}  // namespace longshore
