// plan_refusal: explains why a plan does not fit, and what a change of each key would gain; it
// drafts a plan for every change.
#include <algorithm>
#include <functional>

#include "base/bytes.h"
#include "offload/plan/tier_plan.h"

namespace longshore {
namespace {

// A change of one key of the run file.
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

// The memory that is too small, and by how much.
struct Side {
  const char* what;
  const char* key;
  const PlanAccount& (*of)(const TierPlan& plan);
};
constexpr Side kDeviceSide = {
    "device memory", "offload.device_memory",
    [](const TierPlan& plan) -> const PlanAccount& { return plan.device; }};
constexpr Side kHostSide = {"host memory", "offload.host_memory",
                            [](const TierPlan& plan) -> const PlanAccount& { return plan.host; }};

Bytes missing(const TierPlan& plan, const Side& side) {
  const PlanAccount& account = side.of(plan);
  return account.total - account.limit;
}

TierPlan plan_with(PlanInputs inputs, const Machine& machine, const Lever& lever) {
  lever.apply(inputs);
  return draft_tier_plan(inputs, machine);
}

// Adds a lever that halves a number until `side` fits or it is `least`, unless it is that already.
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

// Adds the next narrower format only: each one is less exact.
void add_narrower_state(std::vector<Lever>& levers, const PlanInputs& inputs) {
  const std::optional<StateFormat> next = narrower_than(inputs.state.format);
  if (!next) return;
  levers.push_back({"offload.state_format", '"' + std::string(name_of(inputs.state.format)) + '"',
                    '"' + std::string(name_of(*next)) + '"',
                    [format = *next](PlanInputs& other) { other.state.format = format; }});
}

void add_units(std::vector<Lever>& levers, const PlanInputs& inputs) {
  for (const OtherUnits& units : inputs.other_units) {
    levers.push_back({"fsdp.units", inputs.units, units.name, [&units](PlanInputs& other) {
                        other.model = units.model.get();
                        other.costs = units.costs;
                      }});
  }
}

// Adds the move of frozen parameters to the model's files, or of the state, or of state and
// parameters, to drives. A frozen model in its own files leaves only small state.
void add_drives(std::vector<Lever>& levers, const PlanInputs& inputs) {
  if (inputs.model_files && inputs.keep_frozen) {
    levers.push_back({"offload.parameters", "\"host\"", "\"files\"",
                      [](PlanInputs& other) { other.keep_frozen = false; }});
  }
  if (inputs.frozen_files) return;
  if (inputs.model_files && !inputs.nvme.state) {
    levers.push_back({"offload.parameters", "\"host\"", "\"files\"", [](PlanInputs& other) {
                        other.frozen_files = other.model_files;
                        other.gather = GatherMode::kCollective;
                      }});
  }
  const auto to_drives = [](PlanInputs& other) {
    other.frozen_files = nullptr;
    if (other.nvme.directories.empty()) other.nvme.directories = {"drive"};
    other.nvme.state = true;
    other.nvme.rooms.clear();
    other.gather = GatherMode::kCollective;
  };
  if (!inputs.nvme.state) {
    const bool named = !inputs.nvme.directories.empty();
    levers.push_back(
        {"offload.optimizer", "\"host\"",
         named ? "\"nvme\"" : "\"nvme\" with offload.nvme = [\"a directory on a drive\"]",
         to_drives});
  } else if (!inputs.nvme.parameters) {
    levers.push_back({"offload.parameters", "\"host\"", "\"nvme\"",
                      [](PlanInputs& other) { other.nvme.parameters = true; }});
  }
}

std::vector<Lever> make_levers(const PlanInputs& inputs, const Machine& machine, const Side& side) {
  std::vector<Lever> levers;
  add_number(levers, inputs, machine, side, "train.micro_batch", &PlanInputs::micro_batch, 1);
  add_number(levers, inputs, machine, side, "train.sequences_per_step",
             &PlanInputs::sequences_per_step, 1);
  add_number(levers, inputs, machine, side, "data.max_tokens", &PlanInputs::max_tokens,
             std::clamp<int64_t>(inputs.max_tokens / 4, 16, 256));
  add_number(levers, inputs, machine, side, "fsdp.prefetch", &PlanInputs::prefetch, 0);
  add_units(levers, inputs);
  if (!inputs.recompute) {
    levers.push_back({"fsdp.recompute", "\"none\"", "\"unit\"",
                      [](PlanInputs& other) { other.recompute = true; }});
  } else if (inputs.keep_results != KeptResults::kNone) {
    levers.push_back({"fsdp.recompute", recompute_value(inputs.keep_results),
                      recompute_value(KeptResults::kNone),
                      [](PlanInputs& other) { other.keep_results = KeptResults::kNone; }});
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
  add_drives(levers, inputs);
  add_narrower_state(levers, inputs);
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

// Lists single keys by gain, and all of them together if no single key is enough.
std::string describe_levers(const PlanInputs& inputs, const Machine& machine, const TierPlan& plan,
                            const Side& side) {
  const std::vector<Lever> levers = make_levers(inputs, machine, side);
  std::vector<Gain> gains;
  PlanInputs together = inputs;
  bool enough = false;
  for (const Lever& lever : levers) {
    const TierPlan other = plan_with(inputs, machine, lever);
    const Bytes bytes = side.of(plan).total - side.of(other).total;
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
    text += "\n    all of these together need " + format_bytes(side.of(least).total) +
            (missing(least, side) <= 0 ? ", enough" : ", still too much");
  }
  return text;
}

std::string explain_side(const PlanInputs& inputs, const Machine& machine, const TierPlan& plan,
                         const Side& side) {
  const PlanAccount& account = side.of(plan);
  // The ranks of a machine share its memory; a limit of the run file is that of one rank.
  const bool shared = &account == &plan.host && account.limit_auto && plan.ranks_per_node > 1;
  const int32_t ranks = shared ? plan.ranks_per_node : 1;
  const auto [needed, given] = format_bytes_apart(account.total * ranks, account.limit * ranks);
  std::string text = std::string(side.what) + ": the plan needs " + needed +
                     (shared ? " for " + std::to_string(ranks) + " ranks, " : ", ") +
                     (account.limit_auto ? "the machine has " : std::string(side.key) + " is ") +
                     given + ", " + format_bytes(missing(plan, side) * ranks) + " too little";
  if (shared) text += "; of one rank:";
  text += describe_lines(account.lines);
  text += "\n  what would help:" + describe_levers(inputs, machine, plan, side);
  if (!account.limit_auto) {
    text += "\n    " + std::string(side.key) + " of at least " + format_bytes(account.total) +
            " (" + std::to_string(account.total) + " bytes)";
  }
  return text;
}

std::string explain_gpu_cap(const TierPlan& plan) {
  if (plan.device.limit_is_there()) return "";
  const auto [wanted, there] = format_bytes_apart(plan.device.limit, plan.device.memory);
  return "device memory: offload.device_memory is " + wanted + ", the GPU has " + there +
         "\n  what would help:\n    offload.device_memory = \"auto\": the free memory of the GPU";
}

std::string explain_cap(const PlanInputs& inputs, const Machine& machine, const TierPlan& plan) {
  if (plan.host.limit_is_there()) return "";
  const int32_t ranks = inputs.ranks_per_node;
  const Bytes asked = plan.host.limit * ranks;
  const auto [wanted, there] = format_bytes_apart(asked, machine.host_installed());
  const bool grouped = machine.cgroup_limit && *machine.cgroup_limit < machine.ram_total;
  std::string text = "host memory: offload.host_memory is " + format_bytes(plan.host.limit);
  if (ranks > 1) text += ", by " + std::to_string(ranks) + " ranks of a machine " + wanted;
  text += grouped ? ", the control group may take " + there + " of the machine's " +
                        format_bytes(machine.ram_total)
                  : ", the machine has " + there;
  text += ", " + format_bytes(asked - machine.host_installed()) + " too little";
  const Bytes free = machine.host_available() / ranks;
  return text + "\n  what would help:\n    offload.host_memory = \"auto\": the free memory, now " +
         format_bytes(free) + (ranks > 1 ? " for each rank" : "") +
         (plan.host.total <= free ? ", enough: the plan needs "
                                  : ", still too little: the plan needs ") +
         format_bytes(plan.host.total);
}

std::string explain_drives(const PlanInputs& inputs, const Machine& machine, const TierPlan& plan) {
  if (plan.drives.missing == 0) return "";
  std::string text = "drives: the files need " + format_bytes(plan.drives.missing) +
                     " more than is free on their file systems";
  for (size_t i = 0; i < plan.drives.files.size() && i < inputs.nvme.rooms.size(); ++i) {
    const std::optional<DriveRoom>& room = inputs.nvme.rooms[i];
    text += "\n    " + inputs.nvme.directories[i] + ": " +
            format_bytes(plan.drives.files[i] * inputs.ranks_per_node) + " needed";
    if (!room) continue;
    text += ", " + format_bytes(room->free) + " free";
    if (room->held > 0) text += " and " + format_bytes(room->held) + " held by files of a run";
    for (size_t j = 0; j < i; ++j) {
      if (!inputs.nvme.rooms[j] || inputs.nvme.rooms[j]->file_system != room->file_system) continue;
      text += ", the same file system as " + inputs.nvme.directories[j];
      break;
    }
  }
  std::vector<Lever> levers;
  if (inputs.nvme.state && inputs.nvme.versions == 2) {
    levers.push_back(
        {"offload.nvme_versions", "2", "1", [](PlanInputs& other) { other.nvme.versions = 1; }});
  }
  add_narrower_state(levers, inputs);
  if (inputs.nvme.inputs) {
    levers.push_back({"offload.activations", "\"nvme\"", "\"host\"",
                      [](PlanInputs& other) { other.nvme.inputs = false; }});
  }
  text += "\n  what would help:\n    another directory in offload.nvme, on a drive with more room";
  for (const Lever& lever : levers) {
    const Bytes left = plan_with(inputs, machine, lever).drives.missing;
    if (left >= plan.drives.missing) continue;
    text += "\n    " + lever.key + " = " + lever.to + " (now " + lever.from + ") saves " +
            format_bytes(plan.drives.missing - left) + (left == 0 ? ", enough alone" : "");
  }
  return text;
}

}  // namespace

std::string explain_misfit(const PlanInputs& refused, const Machine& machine) {
  PlanInputs inputs = refused;
  inputs.fill_host = false;  // so that a gain is what a key frees, not what is left after filling
  const TierPlan plan = draft_tier_plan(inputs, machine);
  std::string text;
  for (const Side& side : {kDeviceSide, kHostSide}) {
    if (missing(plan, side) <= 0) continue;
    if (!text.empty()) text += '\n';
    text += explain_side(inputs, machine, plan, side);
  }
  for (const std::string& part : {explain_gpu_cap(plan), explain_cap(inputs, machine, plan),
                                  explain_drives(inputs, machine, plan)}) {
    if (!text.empty() && !part.empty()) text += '\n';
    text += part;
  }
  return text;
}

}  // namespace longshore
