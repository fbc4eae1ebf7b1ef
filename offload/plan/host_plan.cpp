#include "offload/plan/host_plan.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>

#include "base/file.h"
#include "device/bounced_copies.h"
#include "offload/optimizer/update_rule.h"
#include "offload/plan/drive_plan.h"
#include "offload/plan/machine.h"
#include "pinned/frozen_file_store.h"
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

// Adds what FrozenFileStore holds beside trained parameters.
void add_frozen(HostPlan& plan, const PlanSizes& sizes, const StepPlan& step) {
  size_t kept = 0, all = 0;
  for (size_t i = 0; i < sizes.layouts().size(); ++i) {
    const Bytes bytes = FrozenFileStore::planned_resident_bytes(sizes.layouts()[i]);
    if (bytes == 0) continue;
    ++all;
    if (step.resident.empty() || !step.resident[i]) continue;
    ++kept;
    plan.resident += bytes;
  }
  const Bytes slots = FrozenFileStore::planned_slot_bytes(sizes.layouts(), step.resident);
  add_line(plan, "resident frozen parameters",
           std::to_string(kept) + " of " + std::to_string(all) + " units, read once", plan.resident,
           true);
  add_line(plan, "frozen parameters",
           std::to_string(FrozenFileStore::kSlots) + " slots, read from the model's files", slots,
           true);
  plan.arena += plan.resident + slots;
}

void add_state(HostPlan& plan, const PlanSizes& sizes, const StepPlan& step) {
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
  const bool files = inputs.frozen_files != nullptr;
  std::vector<FlatLayout> held = sizes.layouts();
  if (files) std::ranges::transform(held, held.begin(), &FlatLayout::without_frozen);
  const Bytes join = PinnedStore::planned_join_bytes(held, inputs.state);
  plan.arena = PinnedStore::planned_bytes(held, inputs.state);
  add_line(plan, "shards and optimizer state",
           "state_format " + std::string(name_of(inputs.state.format)) +
               (is_exact(inputs.state.format) ? "" : ", approximate moments") +
               (files ? ", of trained parameters" : ""),
           plan.arena - join, true);
  if (files) add_frozen(plan, sizes, step);
  add_line(plan, "join region", "split masters joined for fp32 compute", join, true);
}

void add_gradients(HostPlan& plan, const PlanSizes& sizes) {
  if (!sizes.trains()) return;
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

// Adds the scratch of updates of whole matrices. Its line also says what it costs to keep them
// whole: the bytes of a rank's state, on any tier, that are padding for it.
void add_matrices(HostPlan& plan, const PlanSizes& sizes) {
  const PlanInputs& inputs = sizes.inputs();
  const ScratchElements none = [](int64_t, int64_t) { return int64_t{0}; };
  const MatrixScratch scratch =
      matrix_scratch(sizes.model(), inputs.matrix_scratch ? inputs.matrix_scratch : none,
                     inputs.optimizer_threads);
  plan.matrix_scratch = scratch.bytes();
  for (const FlatLayout& layout : sizes.layouts()) {
    for (const Region region : regions_of(inputs.state)) {
      plan.matrix_padding += region_bytes(inputs.state, Segment::kWholeMatrices, region,
                                          layout.whole_matrix_padding());
    }
  }
  if (plan.matrix_scratch == 0 && plan.matrix_padding == 0) return;
  plan.lines.push_back({"matrix updates",
                        std::to_string(scratch.count) + " whole matrices at a time; they leave " +
                            format_bytes(plan.matrix_padding) + " of the rank's state empty",
                        plan.matrix_scratch, true});
  plan.total += plan.matrix_scratch;
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

// Chooses what is registered with the GPU, and adds the buffers of copies of the rest.
void add_pinned(HostPlan& plan, const PlanInputs& inputs, const Machine& machine) {
  // With gathers on the host a rank also reads the parameters of the others.
  const int32_t read = inputs.gather == GatherMode::kHost ? inputs.topology.shard_ranks : 1;
  std::optional<Bytes> limit = inputs.pinned_cap;
  if (machine.pinnable) {
    const Bytes share = *machine.pinnable / inputs.ranks_per_node;
    limit = std::min(limit.value_or(share), share);
  }
  plan.pinned = plan_pinned(
      {.state = read * plan.arena, .gradients = plan.gradients, .inputs = plan.inputs}, limit);
  if (plan.pinned.everything()) return;
  const Bytes buffers = plan.pinned.copy_buffers;
  if (buffers == 0) {
    plan.lines.push_back(
        {"copy buffers", "none: the driver copies pageable memory through its own", 0, true});
    return;
  }
  add_line(plan, "copy buffers",
           std::to_string(kBounceBuffers) + " x " + format_bytes(buffers / kBounceBuffers) +
               ", registered with the GPU; the memory that is not is copied through them",
           buffers, true);
}

// host_memory: reads memory and cores from /proc and from control groups, versions 1 and 2.

namespace fs = std::filesystem;

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// Reads a file with one number; nullopt if it is missing or "max".
std::optional<int64_t> number_in(const fs::path& path) {
  const auto line = first_line(path);
  return line ? parse_integer(*line) : std::nullopt;
}

// Reads the number behind `key` in lines of "key number".
std::optional<int64_t> number_of(const fs::path& path, std::string_view key) {
  return parse_integer(word_behind(path, key));
}

struct CgroupPaths {
  std::optional<fs::path> v1_memory, v1_cpu, v2;  // relative to their mounts
};

CgroupPaths read_cgroup_paths(const fs::path& root) {
  CgroupPaths paths;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path path = fs::path(line.substr(second + 1)).relative_path();
    if (controllers == ",,") paths.v2 = path;
    if (controllers.find(",memory,") != std::string::npos) paths.v1_memory = path;
    if (controllers.find(",cpu,") != std::string::npos) paths.v1_cpu = path;
  }
  return paths;
}

// Returns the group's folder and those above it up to the mount. In a container the path may be the
// host's and not exist below the mount; folders that exist are still used.
std::vector<fs::path> folders_up(const fs::path& mount, const fs::path& relative) {
  std::vector<fs::path> folders;
  const fs::path clean = relative.lexically_normal();
  fs::path folder = mount;
  folders.push_back(folder);
  for (const fs::path& part : clean) {
    if (part == ".." || part == "." || part.empty()) continue;
    folder /= part;
    folders.push_back(folder);
  }
  return folders;
}

void lower(std::optional<Bytes>& least, Bytes value) {
  least = least ? std::min(*least, value) : value;
}

struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  // key in memory.stat: cached files, reclaimed first
};
constexpr MemoryFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file"};
constexpr MemoryFiles kV2 = {"memory.max", "memory.current", "inactive_file"};

void apply_memory_limits(const std::vector<fs::path>& folders, const MemoryFiles& files,
                         HostMemory& memory) {
  for (const fs::path& folder : folders) {
    const auto limit = number_in(folder / files.limit);
    // Version 1 writes a missing limit as a number near 2^63.
    if (!limit || *limit < 0 || *limit >= std::numeric_limits<int64_t>::max() / 2) continue;
    const int64_t usage = number_in(folder / files.usage).value_or(0);
    const int64_t cached = number_of(folder / "memory.stat", files.inactive_file).value_or(0);
    lower(memory.cgroup_limit, *limit);
    lower(memory.cgroup_available,
          std::clamp<int64_t>(*limit - usage + std::min(cached, usage), 0, *limit));
  }
}

std::optional<int> cores_of(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp<int64_t>((quota + period - 1) / period, 1, 1 << 20));
}

std::optional<int> v2_quota(const fs::path& folder) {
  const auto line = first_line(folder / "cpu.max");  // "max 100000" or "200000 100000"
  if (!line) return std::nullopt;
  std::istringstream words(*line);
  std::string quota;
  std::string period;
  words >> quota >> period;
  return cores_of(parse_integer(quota).value_or(0), parse_integer(period).value_or(0));
}

std::optional<int> v1_quota(const fs::path& folder) {
  return cores_of(number_in(folder / "cpu.cfs_quota_us").value_or(0),
                  number_in(folder / "cpu.cfs_period_us").value_or(0));
}

}  // namespace

HostPlan plan_host(const PlanSizes& sizes, const DevicePlan& device, const StepPlan& step,
                   const Machine& machine) {
  const PlanInputs& inputs = sizes.inputs();
  HostPlan plan;
  add_state(plan, sizes, step);
  add_gradients(plan, sizes);
  add_matrices(plan, sizes);
  add_activation_checkpoints(plan, sizes, step);
  if (device.kind == DeviceKind::kCpu) {
    add_line(plan, "cpu device", "all of the device's bytes", device.total, false);
  }
  add_line(plan, "data", "estimate", inputs.data_bytes, false);
  const bool cpu = device.kind == DeviceKind::kCpu;
  if (!cpu) add_pinned(plan, inputs, machine);
  add_line(
      plan, "process",
      cpu ? "estimate: libraries, scratch, threads" : "estimate: CUDA, libraries, scratch, threads",
      cpu ? kProcessBytes : kGpuProcessHostBytes, false);
  plan.limit_auto = !inputs.host_cap.has_value();
  plan.limit = inputs.host_cap.value_or(machine.host_available() / inputs.ranks_per_node);
  plan.machine = machine.host_installed() / inputs.ranks_per_node;
  return plan;
}

HostMemory read_host_memory(const fs::path& root) {
  HostMemory memory;
  memory.total = number_of(root / "proc/meminfo", "MemTotal:").value_or(0) * kKiB;
  memory.available = number_of(root / "proc/meminfo", "MemAvailable:").value_or(0) * kKiB;
  const CgroupPaths paths = read_cgroup_paths(root);
  const fs::path mount = root / "sys/fs/cgroup";
  if (paths.v1_memory) {
    apply_memory_limits(folders_up(mount / "memory", *paths.v1_memory), kV1, memory);
  }
  if (paths.v2) apply_memory_limits(folders_up(mount, *paths.v2), kV2, memory);
  return memory;
}

std::optional<int> read_core_quota(const fs::path& root) {
  const CgroupPaths paths = read_cgroup_paths(root);
  const fs::path mount = root / "sys/fs/cgroup";
  std::optional<int> least;
  const auto apply = [&](std::optional<int> cores) {
    if (cores) least = std::min(*cores, least.value_or(*cores));
  };
  if (paths.v1_cpu) {
    for (const fs::path& folder : folders_up(mount / "cpu", *paths.v1_cpu)) apply(v1_quota(folder));
  }
  if (paths.v2) {
    for (const fs::path& folder : folders_up(mount, *paths.v2)) apply(v2_quota(folder));
  }
  return least;
}

namespace {

// "auto" leaves this part of the free memory to other programs and to estimates that are short. An
// amount in the run file is used in full.
constexpr Bytes kLeftOfFree = 10;

}  // namespace

// A step reads from the files while other units compute. Two reads in a row leave the second one
// the computation of one unit to hide behind; with a resident unit between them it has two. So for
// the same bytes an even spread hides more of the reads than keeping the first units would.
std::vector<bool> spread_resident(const std::vector<ResidentUnit>& units, Bytes room) {
  std::vector<bool> resident(units.size(), false);
  std::set<int32_t, std::greater<>> counts;
  for (const ResidentUnit& unit : units) {
    if (unit.bytes > 0) counts.insert(unit.reads);
  }
  for (const int32_t reads : counts) {
    const auto keep = [&](size_t i) {
      const bool fits = !resident[i] && units[i].bytes <= room;
      if (fits) room -= units[i].bytes;
      resident[i] = resident[i] || fits;
      return fits;
    };
    const auto is_equal = [&](const ResidentUnit& unit) {
      return unit.bytes > 0 && unit.reads == reads;
    };
    Bytes all = 0, largest = 0;
    for (const ResidentUnit& unit : units) {
      if (!is_equal(unit)) continue;
      all += unit.bytes;
      largest = std::max(largest, unit.bytes);
    }
    // Whole units of the largest size, so that a rest of the room shifts none of them.
    const Bytes whole = room / largest * largest;
    const double share = std::min(1.0, static_cast<double>(whole) / static_cast<double>(all));
    double owed = 0.0;  // bytes that should be resident up to here and are not
    for (size_t i = 0; i < units.size(); ++i) {
      if (!is_equal(units[i])) continue;
      const auto bytes = static_cast<double>(units[i].bytes);
      owed += bytes * share;
      if (owed >= bytes / 2 && keep(i)) owed -= bytes;
    }
    for (size_t i = 0; i < units.size(); ++i) {
      if (is_equal(units[i])) keep(i);
    }
  }
  return resident;
}

std::vector<bool> choose_resident(const PlanSizes& sizes, const StepPlan& step,
                                  const HostPlan& host) {
  const PlanInputs& inputs = sizes.inputs();
  if (inputs.frozen_files && inputs.keep_frozen) {
    return std::vector<bool>(sizes.layouts().size(), true);
  }
  if (!inputs.frozen_files || !inputs.fill_host) return {};
  Bytes room = host.limit - host.total - (host.limit_auto ? host.limit / kLeftOfFree : 0);
  if (room <= 0) return {};
  std::vector<ResidentUnit> units;
  Bytes all = 0;
  for (const FlatLayout& layout : sizes.layouts()) {
    units.push_back({.bytes = FrozenFileStore::planned_resident_bytes(layout)});
    all += units.back().bytes;
  }
  const StepSchedule& pass = step.trains() ? step.schedules.train : step.schedules.forward;
  for (const Op& op : pass.ops) {
    if (op.kind == OpKind::kReadParameters) ++units[static_cast<size_t>(op.unit.value)].reads;
  }
  // Without a unit that is read there are no slots either.
  const Bytes slots = FrozenFileStore::planned_slot_bytes(sizes.layouts(), {});
  if (all <= room + slots) room = all;
  std::vector<bool> resident = spread_resident(units, room);
  if (std::ranges::find(resident, true) == resident.end()) return {};
  return resident;
}

}  // namespace longshore
