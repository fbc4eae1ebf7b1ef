// Why a plan does not fit, and what each key of the run file would gain: every lever is tried by
// planning again.
#include <algorithm>
#include <functional>

#include "offload/plan/tier_plan.h"

namespace longshore {
namespace {

// A change of one key.
struct Lever {
  std::string key;
  std::string from;
  std::string to;
  std::function<void(PlanInputs&)> apply;
};

struct Gain {
  const Lever* lever;
  Bytes bytes = 0;
  bool enough = false;
};

// Which side of the plan is too large, and by how much.
struct Side {
  const char* what;
  const char* key;
  Bytes TierPlan::* total;
  Bytes TierPlan::* limit;
  bool TierPlan::* automatic;
  std::vector<PlanLine> TierPlan::* lines;
};
constexpr Side kDeviceSide = {
    "device memory",       "offload.device_memory",    &TierPlan::device_total,
    &TierPlan::device_cap, &TierPlan::device_cap_auto, &TierPlan::device_lines};
constexpr Side kHostSide = {
    "host memory",         "offload.host_memory",      &TierPlan::host_total,
    &TierPlan::host_limit, &TierPlan::host_limit_auto, &TierPlan::host_lines};

Bytes missing(const TierPlan& plan, const Side& side) {
  return plan.*side.total - plan.*side.limit;
}

TierPlan plan_with(PlanInputs inputs, const Machine& machine, const Lever& lever) {
  lever.apply(inputs);
  return draft_tier_plan(inputs, machine);
}

// Halves a number until `side` fits or it is `least`; no lever when it is `least` already.
void add_number(std::vector<Lever>& levers, const PlanInputs& inputs, const Machine& machine,
                const Side& side, const char* key, int64_t PlanInputs::* field, int64_t least) {
  int64_t value = inputs.*field;
  if (value <= least) return;
  PlanInputs changed = inputs;
  do {
    value = std::max(least, value / 2);
    changed.*field = value;
  } while (value > least && missing(draft_tier_plan(changed, machine), side) > 0);
  levers.push_back({key, std::to_string(inputs.*field), std::to_string(value),
                    [field, value](PlanInputs& other) { other.*field = value; }});
}

std::vector<Lever> make_levers(const PlanInputs& inputs, const Machine& machine, const Side& side) {
  std::vector<Lever> levers;
  add_number(levers, inputs, machine, side, "train.micro_batch", &PlanInputs::micro_batch, 1);
  add_number(levers, inputs, machine, side, "train.sequences_per_step",
             &PlanInputs::sequences_per_step, 1);
  add_number(levers, inputs, machine, side, "data.max_tokens", &PlanInputs::max_tokens, 16);
  add_number(levers, inputs, machine, side, "fsdp.prefetch", &PlanInputs::prefetch, 0);
  if (!inputs.recompute) {
    levers.push_back({"fsdp.recompute", "\"none\"", "\"unit\"",
                      [](PlanInputs& other) { other.recompute = true; }});
  }
  if (!inputs.offload_inputs) {
    levers.push_back({"offload.activations", "\"device\"", "\"host\"",
                      [](PlanInputs& other) { other.offload_inputs = true; }});
  } else if (inputs.nvme.used() && !inputs.nvme.inputs) {
    levers.push_back({"offload.activations", "\"host\"", "\"nvme\"",
                      [](PlanInputs& other) { other.nvme.inputs = true; }});
  }
  if (inputs.overlap != UpdateOverlap::kBackward) {
    levers.push_back({"optimizer.overlap",
                      inputs.overlap == UpdateOverlap::kForward ? "\"forward\"" : "\"none\"",
                      "\"backward\" with train.max_grad_norm = 0",
                      [](PlanInputs& other) { other.overlap = UpdateOverlap::kBackward; }});
  }
  if (inputs.state.compute == DType::kF32) {
    levers.push_back({"precision.compute", "\"fp32\"", "\"bf16\"", [](PlanInputs& other) {
                        other.state.compute = DType::kBF16;
                        other.state.drain = DType::kBF16;
                      }});
  } else if (inputs.state.drain == DType::kF32) {
    levers.push_back({"precision.drain", "\"fp32\"", "\"bf16\"",
                      [](PlanInputs& other) { other.state.drain = DType::kBF16; }});
  }
  if (inputs.state.format != StateFormat::kSplitInt8) {
    // The next narrower one: each step gives up more.
    const auto next = static_cast<StateFormat>(static_cast<uint8_t>(inputs.state.format) + 1);
    levers.push_back({"offload.state_format", '"' + std::string(name_of(inputs.state.format)) + '"',
                      '"' + std::string(name_of(next)) + '"',
                      [next](PlanInputs& other) { other.state.format = next; }});
  }
  return levers;
}

std::string describe_lines(const std::vector<PlanLine>& lines) {
  std::string text;
  for (const PlanLine& line : lines) {
    text += "\n    " + line.name + ": " + format_bytes(line.bytes);
    if (!line.detail.empty()) text += " (" + line.detail + ")";
  }
  return text;
}

// Each key on its own, the largest gain first, and all of them together when none is enough.
std::string describe_levers(const PlanInputs& inputs, const Machine& machine, const TierPlan& plan,
                            const Side& side) {
  const std::vector<Lever> levers = make_levers(inputs, machine, side);
  std::vector<Gain> gains;
  PlanInputs together = inputs;
  bool enough = false;
  for (const Lever& lever : levers) {
    const TierPlan other = plan_with(inputs, machine, lever);
    const Bytes bytes = plan.*side.total - other.*side.total;
    if (bytes <= 0) continue;
    gains.push_back({&lever, bytes, missing(other, side) <= 0});
    enough = enough || gains.back().enough;
    lever.apply(together);
  }
  std::stable_sort(gains.begin(), gains.end(),
                   [](const Gain& a, const Gain& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const Gain& gain : gains) {
    text += "\n    " + gain.lever->key + " = " + gain.lever->to + " (now " + gain.lever->from +
            ") saves " + format_bytes(gain.bytes) + (gain.enough ? ", enough alone" : "");
  }
  if (!enough && gains.size() > 1) {
    const TierPlan least = draft_tier_plan(together, machine);
    text += "\n    all of these together need " + format_bytes(least.*side.total) +
            (missing(least, side) <= 0 ? ", enough" : ", still too much");
  }
  return text;
}

std::string explain_side(const PlanInputs& inputs, const Machine& machine, const TierPlan& plan,
                         const Side& side) {
  std::string text =
      std::string(side.what) + ": the plan needs " + format_bytes(plan.*side.total) + ", " +
      (plan.*side.automatic ? "the machine has " : std::string(side.key) + " is ") +
      format_bytes(plan.*side.limit) + ", " + format_bytes(missing(plan, side)) + " too little";
  text += describe_lines(plan.*side.lines);
  text += "\n  what would help:" + describe_levers(inputs, machine, plan, side);
  if (!(plan.*side.automatic)) {
    text += "\n    " + std::string(side.key) + " of at least " + format_bytes(plan.*side.total) +
            " (" + std::to_string(plan.*side.total) + " bytes)";
  }
  return text;
}

}  // namespace

std::string explain_misfit(const PlanInputs& inputs, const Machine& machine) {
  const TierPlan plan = draft_tier_plan(inputs, machine);
  std::string text;
  for (const Side& side : {kDeviceSide, kHostSide}) {
    if (missing(plan, side) <= 0) continue;
    if (!text.empty()) text += '\n';
    text += explain_side(inputs, machine, plan, side);
  }
  return text;
}

}  // namespace longshore
