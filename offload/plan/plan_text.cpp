#include "offload/plan/plan_text.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "base/texts.h"
#include "offload/plan/tier_plan.h"

namespace longshore {
namespace {

// ---- How long the drives of a plan last under its writes ----

constexpr double kSecondsOfADay = 86400.0;
constexpr double kSteps = 1000.0;

// The wear of one drive; members without enough information are empty.
struct DriveLife {
  double step_bytes = 0.0;
  std::optional<double> run_bytes;
  std::optional<double> run_share;  // of the rated writes
  std::optional<double> days;       // of continuous running, from new to the rating
};

DriveLife life_of(const TierPlan& plan, size_t drive) {
  DriveLife life;
  life.step_bytes = static_cast<double>(plan.drives.step_writes[drive]);
  if (plan.steps > 0) life.run_bytes = life.step_bytes * static_cast<double>(plan.steps);
  const auto rated = static_cast<double>(plan.drives.tier.rated_writes.value_or(0));
  if (rated <= 0.0 || life.step_bytes <= 0.0) return life;
  if (life.run_bytes) life.run_share = *life.run_bytes / rated;
  if (plan.drives.tier.seconds_per_step) {
    life.days = rated / life.step_bytes * *plan.drives.tier.seconds_per_step / kSecondsOfADay;
  }
  return life;
}

std::string number(double value, const char* unit) {
  return formatted("%.3g%s", value, unit);
}

std::string drive_line(const TierPlan& plan, size_t drive) {
  const DriveLife life = life_of(plan, drive);
  std::string text = "  " + plan.drives.tier.directories[drive] + ": 1000 steps write " +
                     number(life.step_bytes * kSteps * 1e-12, " TB");
  if (life.run_bytes) text += ", the run " + number(*life.run_bytes * 1e-12, " TB");
  if (life.run_share) {
    text += " = " + number(*life.run_share * 100.0, " %") + " of the rated " +
            number(static_cast<double>(*plan.drives.tier.rated_writes) * 1e-12, " TB");
  }
  if (life.days) {
    text += "; at " + number(*plan.drives.tier.seconds_per_step, " s") +
            " a step the rating lasts " + number(*life.days, " days");
  }
  if (drive < plan.drives.tier.wear.size() && plan.drives.tier.wear[drive]) {
    const DriveWear& wear = *plan.drives.tier.wear[drive];
    text += "; the drive reports that " + number(static_cast<double>(wear.written) * 1e-12, " TB") +
            " were written and " + std::to_string(wear.percent_used) + " % of its life is used";
  }
  return text + "\n";
}

template <typename T>
nlohmann::ordered_json value_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// Describes each drive in a line: terabytes of the run, their share of the rating, days until it is
// used up (if a step's seconds are known), and the drive's own report. Empty without drives.
std::string drive_life_text(const TierPlan& plan) {
  std::string text;
  for (size_t drive = 0; drive < plan.drives.step_writes.size(); ++drive) {
    text += drive_line(plan, drive);
  }
  if (!text.empty() && !plan.drives.tier.rated_writes) {
    text +=
        "  set offload.nvme_tbw, the rated endurance of the drives, to see the share of their "
        "life\n";
  }
  return text;
}

// Returns the numbers of drive_life_text by drive; unknown ones are null.
nlohmann::ordered_json drive_life_json(const TierPlan& plan) {
  auto drives = nlohmann::ordered_json::array();
  for (size_t drive = 0; drive < plan.drives.step_writes.size(); ++drive) {
    const DriveLife life = life_of(plan, drive);
    nlohmann::ordered_json json = {
        {"step_written_bytes", plan.drives.step_writes[drive]},
        {"run_written_bytes", value_or_null(life.run_bytes)},
        {"rated_bytes", value_or_null(plan.drives.tier.rated_writes)},
        {"run_share_of_rating", value_or_null(life.run_share)},
        {"days_to_rating", value_or_null(life.days)},
        {"seconds_per_step", value_or_null(plan.drives.tier.seconds_per_step)},
        {"written_so_far_bytes", nullptr},
        {"percent_used", nullptr}};
    if (drive < plan.drives.tier.wear.size() && plan.drives.tier.wear[drive]) {
      json["written_so_far_bytes"] = plan.drives.tier.wear[drive]->written;
      json["percent_used"] = plan.drives.tier.wear[drive]->percent_used;
    }
    drives.push_back(std::move(json));
  }
  return drives;
}

using Json = nlohmann::ordered_json;

double percent_of(Bytes bytes, Bytes limit) {
  return limit > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(limit) : 0.0;
}

std::string fixed(double value, int decimals) {
  return formatted("%.*f", decimals, value);
}

std::string padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : text + std::string(width - text.size(), ' ');
}

std::string right(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

// Returns a text such as "host 1.2 GiB of 16.0 GiB, 14.8 GiB left".
std::string share_text(const char* tier, Bytes total, Bytes limit) {
  const auto [needed, given] = format_bytes_apart(total, limit);
  return std::string(tier) + " " + needed + " of " + given + ", " +
         format_bytes(std::abs(limit - total)) + (total > limit ? " too little" : " left");
}

// One tier: its lines, then total and limit.
struct Tier {
  std::string title;
  const std::vector<PlanLine>* lines;
  Bytes total;
  Bytes limit;
  std::string limit_name;
};

size_t name_width(const TierPlan& plan) {
  size_t width = std::string("total").size();
  for (const auto* lines : {&plan.device.lines, &plan.host.lines}) {
    for (const PlanLine& line : *lines) width = std::max(width, line.name.size());
  }
  return width;
}

std::string row(const std::string& name, Bytes bytes, Bytes limit, const std::string& detail,
                size_t width) {
  std::string text = "  " + padded(name, width) + right(format_bytes(bytes), 13) +
                     right(fixed(percent_of(bytes, limit), 1) + " %", 9);
  if (!detail.empty()) text += "   " + detail;
  return text + "\n";
}

std::string table(const Tier& tier, size_t width) {
  std::string text = tier.title + "\n";
  for (const PlanLine& line : *tier.lines) {
    text += row(line.name, line.bytes, tier.limit, line.detail, width);
  }
  text += row("total", tier.total, tier.limit, "", width);
  text += row("limit", tier.limit, tier.limit, tier.limit_name, width);
  if (tier.total > tier.limit) {
    text += row("too little", tier.total - tier.limit, tier.limit, "does not fit", width);
  }
  return text;
}

std::string device_limit_name(const TierPlan& plan) {
  if (!plan.device.limit_auto) return "offload.device_memory";
  return plan.device.kind == DeviceKind::kCpu ? "auto: what the plan needs"
                                              : "auto: the GPU's memory";
}

// Returns the device's part of the first line. Without a limit of the run file a CPU's is what the
// plan needs, of which nothing is left by construction.
std::string device_share(const TierPlan& plan) {
  const char* name = plan.topology.ranks > 1 ? "each device" : "device";
  if (plan.device.limit_auto && plan.device.kind == DeviceKind::kCpu) {
    return std::string(name) + " " + format_bytes(plan.device.total) + ", without a limit";
  }
  return share_text(name, plan.device.total, plan.device.limit);
}

// Returns "" for one rank, else " on 2 GPUs of one machine".
std::string place_text(const TierPlan& plan) {
  const int32_t ranks = plan.topology.ranks, machines = plan.machines();
  if (ranks == 1) return "";
  return " on " + std::to_string(ranks) +
         (plan.device.kind == DeviceKind::kCuda ? " GPUs of " : " ranks of ") +
         (machines == 1 ? std::string("one machine") : std::to_string(machines) + " machines");
}

// Returns "" if the cap covers everything.
std::string outside_text(const TierPlan& plan) {
  std::string text;
  for (const OutsideCap& part : outside_cap(plan.device.kind, plan.topology)) {
    text += (text.empty() ? "  outside the limit, estimates: " : ", ") + part.name + " about " +
            format_bytes(part.bytes);
  }
  return text.empty() ? text : text + "\n";
}

Json outside_json(const TierPlan& plan) {
  Json array = Json::array();
  for (const OutsideCap& part : outside_cap(plan.device.kind, plan.topology)) {
    array.push_back({{"name", part.name}, {"bytes", part.bytes}, {"exact", false}});
  }
  return array;
}

std::string threads_text(const TierPlan& plan) {
  return std::to_string(plan.compute_threads) + " compute threads, " +
         std::to_string(plan.optimizer_threads) + " optimizer threads";
}

// Returns "" for one rank.
std::string ranks_text(const TierPlan& plan) {
  const ShardTopology& topology = plan.topology;
  if (topology.ranks == 1) return "";
  return "ranks: " + std::to_string(topology.ranks) + ", " +
         std::string(name_of(topology.strategy)) + ": " + std::to_string(topology.replicas()) +
         " x " + std::to_string(topology.shard_ranks) +
         " (copies of the model x shards), shards are gathered " +
         (plan.gather == GatherMode::kHost ? "on the host" : "by collectives") +
         "; all bytes below are of one rank\n";
}

// Returns "" if ranks exchange no payload.
std::string collectives_text(const StepTraffic& step) {
  const std::pair<const char*, Bytes> parts[] = {{"all-gather ", step.all_gather},
                                                 {"reduce-scatter ", step.reduce_scatter},
                                                 {"all-reduce ", step.all_reduce}};
  std::string text;
  for (const auto& [name, bytes] : parts) {
    if (bytes > 0) text += (text.empty() ? "" : ", ") + std::string(name) + format_bytes(bytes);
  }
  return text.empty() ? text : "  between ranks: " + text + "\n";
}

// Copy, gather and compute are three stages, so two slots stall one of them. Returns advice on
// fsdp.prefetch, or "" if it does not apply.
std::string prefetch_text(const TierPlan& plan) {
  const ShardTopology& topology = plan.topology;
  const bool gathers = topology.shard_ranks > 1 && plan.gather == GatherMode::kCollective;
  if (!gathers || topology.keeps_gathered() || plan.device.slots != 2) return "";
  Bytes more = 0;
  for (const BufferKey key : {BufferKey(DeviceSlot(0)), BufferKey(GradientBuffer(0))}) {
    if (const PlannedBuffer* buffer = plan.device.buffer(key)) more += buffer->bytes;
  }
  return "  fsdp.prefetch = 2 overlaps copy, gather and compute of three units, for " +
         format_bytes(more) + " more on the device\n";
}

Json nvme_json(const TierPlan& plan) {
  Json durable = plan.drives.tier.versions == 1 ? "checkpoint" : "step";
  if (!plan.drives.tier.state) durable = nullptr;
  return {{"directories", plan.drives.tier.directories},
          {"state", plan.drives.tier.state},
          {"parameters", plan.drives.tier.parameters},
          {"activation_checkpoints", plan.drives.tier.inputs},
          {"file_bytes", plan.drives.files},
          {"versions", plan.drives.tier.versions},
          {"durable", durable},
          {"checkpoint_every_steps", plan.drives.tier.checkpoint_steps},
          {"checkpoint_bytes", plan.checkpoint_bytes},
          {"life", drive_life_json(plan)}};
}

std::string difference(Bytes bytes) {
  return format_bytes(std::abs(bytes)) + (bytes < 0 ? " less" : " more");
}

// Returns "" if no other units were compared.
std::string units_text(const TierPlan& plan) {
  std::string text;
  for (const UnitsDifference& other : plan.other_units) {
    text += "  fsdp.units = " + other.name + ": device " + difference(other.device) + ", host " +
            difference(other.host) + ", a step moves " + difference(other.moved) +
            (other.fits ? "\n" : "; does not fit\n");
  }
  return text;
}

Json units_json(const TierPlan& plan) {
  Json array = Json::array();
  for (const UnitsDifference& other : plan.other_units) {
    array.push_back({{"units", other.name},
                     {"fits", other.fits},
                     {"device_bytes_more", other.device},
                     {"host_bytes_more", other.host},
                     {"moved_bytes_more", other.moved}});
  }
  return array;
}

// Returns "" where no parameter is read from the model's files.
std::string files_text(const TierPlan& plan) {
  if (!plan.frozen_in_files) return "";
  return "  read from model files " + format_bytes(plan.step.traffic.files_read) +
         ", of frozen parameters; " + format_bytes(plan.host.resident) +
         " of them stay in host memory\n";
}

std::string step_text(const TierPlan& plan) {
  const auto tokens = static_cast<double>(plan.step.micro_batches * plan.step.positions);
  return "step\n  " + std::to_string(plan.step.micro_batches) + " micro-batches of at most " +
         std::to_string(plan.step.positions) + " positions\n  host to device " +
         format_bytes(plan.step.traffic.h2d) + ", device to host " +
         format_bytes(plan.step.traffic.d2h) + ", update reads and writes " +
         format_bytes(plan.step.traffic.update_dram) + "\n" + files_text(plan) +
         collectives_text(plan.step.traffic) + prefetch_text(plan) + units_text(plan) + "  about " +
         count_text(plan.step.traffic.flops_per_token) + "FLOP a token, " +
         count_text(plan.step.traffic.flops_per_token * tokens) +
         "FLOP a step, attention not counted\n" + length_text(plan);
}

// Returns null if the plan decodes nothing.
Json decoding_json(const TierPlan& plan) {
  if (plan.decode.sequences == 0) return nullptr;
  return {{"sequences", plan.decode.sequences},
          {"longest", plan.decode.longest},
          {"state_bytes", plan.device.states.bytes},
          {"weights_stay", plan.step.moved_by_forward() == 0},
          {"moved_bytes_per_token", plan.step.moved_by_forward()}};
}

Json lines_json(const std::vector<PlanLine>& lines, Bytes limit) {
  Json array = Json::array();
  for (const PlanLine& line : lines) {
    array.push_back({{"name", line.name},
                     {"detail", line.detail},
                     {"bytes", line.bytes},
                     {"percent", percent_of(line.bytes, limit)},
                     {"exact", line.exact}});
  }
  return array;
}

Json ranks_json(const TierPlan& plan) {
  const ShardTopology& topology = plan.topology;
  return {{"ranks", topology.ranks},
          {"ranks_per_node", plan.ranks_per_node},
          {"strategy", name_of(topology.strategy)},
          {"shard_ranks", topology.shard_ranks},
          {"replicas", topology.replicas()}};
}

Json device_json(const TierPlan& plan) {
  Json buffers = Json::array();
  for (const PlannedBuffer& buffer : plan.device.buffers) {
    buffers.push_back({{"name", buffer.name}, {"bytes", buffer.bytes}});
  }
  return {{"kind", name_of(plan.device.kind)},
          {"compute_threads", plan.compute_threads},
          {"slots", plan.device.slots},
          {"owned_bytes", plan.device.owned},
          {"workspace_bound_bytes", plan.device.workspace},
          {"total_bytes", plan.device.total},
          {"cap_bytes", plan.device.limit},
          {"cap_auto", plan.device.limit_auto},
          {"lines", lines_json(plan.device.lines, plan.device.limit)},
          {"outside_cap", outside_json(plan)},
          {"buffers", buffers}};
}

Json host_json(const TierPlan& plan) {
  return {{"state_format", name_of(plan.state.format)},
          {"optimizer_threads", plan.optimizer_threads},
          {"arena_bytes", plan.host.arena},
          {"resident_frozen_bytes", plan.host.resident},
          {"gradient_bytes", plan.host.gradients},
          {"gradient_ring", plan.host.gradient_ring},
          {"registered_bytes", plan.host.pinned.registered},
          {"total_bytes", plan.host.total},
          {"limit_bytes", plan.host.limit},
          {"limit_auto", plan.host.limit_auto},
          {"lines", lines_json(plan.host.lines, plan.host.limit)}};
}

Json machine_json(const Machine& machine) {
  Json gpus = Json::array();
  for (const CudaDevice& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"pci", gpu.pci},
                    {"numa_node", gpu.numa_node},
                    {"peers", gpu.peers}});
  }
  Json json = {{"cpu", machine.cpu_model},
               {"simd", name_of(machine.simd)},
               {"physical_cores", machine.physical_cores},
               {"logical_cores", machine.logical_cores},
               {"ram_total_bytes", machine.ram_total},
               {"ram_available_bytes", machine.ram_available},
               {"cgroup_limit_bytes", nullptr},
               {"gpus", gpus}};
  if (machine.cgroup_limit) json["cgroup_limit_bytes"] = *machine.cgroup_limit;
  return json;
}

}  // namespace

std::string count_text(double count) {
  if (count >= 1e15) return fixed(count / 1e15, 2) + " P";
  if (count >= 1e12) return fixed(count / 1e12, 2) + " T";
  if (count >= 1e9) return fixed(count / 1e9, 2) + " G";
  if (count >= 1e6) return fixed(count / 1e6, 1) + " M";
  if (count >= 1e3) return fixed(count / 1e3, 1) + " k";
  return fixed(count, 0);
}

std::string plan_verdict(const TierPlan& plan) {
  // The ranks of a machine share its memory.
  const int32_t sharing = plan.ranks_per_node;
  const char* host = plan.machines() > 1 ? "each host" : "host";
  std::string text = (plan.fits() ? "fits" : "does not fit") + place_text(plan) + ": ";
  text += device_share(plan) + "; " +
          share_text(host, plan.host.total * sharing, plan.host.limit * sharing);
  if (!plan.host.limit_is_there()) {
    text += ", of which the machine has " + format_bytes(plan.host.machine * sharing);
  }
  if (plan.drives.missing > 0)
    text += "; drives " + format_bytes(plan.drives.missing) + " too little";
  return text + "\n";
}

// The sizes are "about", because headers are not counted.
std::string length_text(const TierPlan& plan) {
  return (plan.steps > 0 ? "  " + std::to_string(plan.steps) + " steps"
                         : "  steps by train.epochs") +
         "; a checkpoint is about " + format_bytes(plan.checkpoint_bytes) + ", an export about " +
         format_bytes(plan.export_bytes) + "\n";
}

std::string decoding_text(const TierPlan& plan) {
  const DecodeUse& decode = plan.decode;
  if (decode.sequences == 0) return "";
  const bool one = decode.sequences == 1;
  std::string text = "decoding: " + std::to_string(decode.sequences) +
                     (one ? " sequence" : " sequences at the same time") + " of at most " +
                     std::to_string(decode.longest) + " tokens, " +
                     format_bytes(plan.device.states.bytes) + " of states on the device; ";
  const Bytes moved = plan.step.moved_by_forward();
  if (moved == 0) return text + "the weights stay there, so that a token moves none";
  return text + "the weights pass through " + std::to_string(plan.device.slots) +
         " slots: each token" + (one ? "" : ", of all sequences together,") + " moves " +
         format_bytes(moved) + " to the device";
}

// Returns "" without drives.
std::string nvme_text(const TierPlan& plan) {
  if (!plan.drives.tier.used()) return "";
  const bool one = plan.drives.tier.state && plan.drives.tier.versions == 1;
  std::string text = "nvme: ";
  if (plan.drives.tier.state) {
    text += (one ? "one version of the state, half the space; " : "two versions of the state; ") +
            durability_text(plan);
  }
  if (plan.drives.tier.state && plan.drives.tier.inputs) text += "; ";
  if (plan.drives.tier.inputs) text += "activation checkpoints between forward and backward";
  text += "\n";
  for (size_t i = 0; i < plan.drives.files.size(); ++i) {
    text +=
        "  " + plan.drives.tier.directories[i] + "  " + format_bytes(plan.drives.files[i]) + "\n";
  }
  text += "  a step reads " + format_bytes(plan.step.traffic.nvme_read) + " and writes " +
          format_bytes(plan.step.traffic.nvme_written);
  if (plan.steps > 0) {
    const double terabytes = static_cast<double>(plan.step.traffic.nvme_written) *
                             static_cast<double>(plan.steps) * 1e-12;
    text += "; the run writes " + fixed(terabytes, 3) + " TB";
  }
  text += "\n" + drive_life_text(plan);
  if (one) {
    text += "  each checkpoint writes " + format_bytes(plan.checkpoint_bytes) + " to run.dir" +
            (plan.topology.ranks > 1 ? ", by all ranks together" : "") + "\n";
  }
  return text + "\n";
}

std::string format_plan(const TierPlan& plan, const Machine& machine) {
  const size_t width = name_width(plan);
  const Tier device = {"device (" + std::string(name_of(plan.device.kind)) + ")",
                       &plan.device.lines, plan.device.total, plan.device.limit,
                       device_limit_name(plan)};
  const Tier host = {"host", &plan.host.lines, plan.host.total, plan.host.limit,
                     plan.host.limit_auto ? "auto: available memory" : "offload.host_memory"};
  std::string text =
      plan_verdict(plan) + "model: " + count_text(static_cast<double>(plan.parameters)) +
      " parameters, " + count_text(static_cast<double>(plan.trainable)) +
      " trained\nmachine: " + machine.cpu_model + ", " + std::to_string(machine.physical_cores) +
      " cores, " + std::string(name_of(machine.simd)) + ", " + format_bytes(machine.ram_total) +
      " of memory, " + std::to_string(machine.gpus.size()) + " GPUs; " + threads_text(plan) + "\n" +
      ranks_text(plan) + "\n";
  text += table(device, width) + outside_text(plan) + "\n" + table(host, width) + "\n" +
          nvme_text(plan) + step_text(plan);
  const std::string decoding = decoding_text(plan);
  return decoding.empty() ? text : text + decoding + "\n";
}

std::string durability_text(const TierPlan& plan) {
  if (plan.drives.tier.versions == 2) return "every step is a durable commit";
  if (plan.drives.tier.checkpoint_steps == 0) {
    return "no step is durable: a kill costs every step since the start "
           "(checkpoint.every_steps = 0)";
  }
  return "no step is durable: a kill costs up to " +
         std::to_string(plan.drives.tier.checkpoint_steps) + " steps (checkpoint.every_steps)";
}

nlohmann::ordered_json plan_to_json(const TierPlan& plan, const Machine& machine) {
  const Json json = {{"fits", plan.fits()},
                     {"parameters", plan.parameters},
                     {"trainable", plan.trainable},
                     {"ranks", ranks_json(plan)},
                     {"device", device_json(plan)},
                     {"host", host_json(plan)},
                     {"nvme", nvme_json(plan)},
                     {"step",
                      {{"micro_batches", plan.step.micro_batches},
                       {"positions", plan.step.positions},
                       {"kept_graphs", plan.step.kept_graphs},
                       {"gather", plan.gather == GatherMode::kHost ? "host" : "collective"},
                       {"h2d_bytes", plan.step.traffic.h2d},
                       {"d2h_bytes", plan.step.traffic.d2h},
                       {"all_gather_bytes", plan.step.traffic.all_gather},
                       {"reduce_scatter_bytes", plan.step.traffic.reduce_scatter},
                       {"all_reduce_bytes", plan.step.traffic.all_reduce},
                       {"update_dram_bytes", plan.step.traffic.update_dram},
                       {"nvme_read_bytes", plan.step.traffic.nvme_read},
                       {"nvme_written_bytes", plan.step.traffic.nvme_written},
                       {"files_read_bytes", plan.step.traffic.files_read},
                       {"flops_per_token_estimate", plan.step.traffic.flops_per_token}}},
                     {"decoding", decoding_json(plan)},
                     {"other_units", units_json(plan)},
                     {"machine", machine_json(machine)}};
  return json;
}

}  // namespace longshore
