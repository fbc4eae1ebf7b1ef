#include "trainer/machine/diagnosis.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"
#include "comm/ranks/launcher.h"
#include "device/cuda_device.h"
#include "device/cuda_runtime.h"
#include "nvme/drive/block_file.h"
#include "nvme/drive/io_ring.h"
#include "pinned/pinned_arena.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCapIpcLock = uint64_t{1} << 14;

std::string line_of(const fs::path& path) {
  return first_line(path).value_or("");
}

int64_t number_of(const std::string& text, int base = 10) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

// Returns the numbers of a list such as "0-3,8".
std::set<int> numbers_of(const std::string& list) {
  std::set<int> numbers;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    if (range.empty()) continue;
    const size_t dash = range.find('-');
    const auto first = number_of(range.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number_of(range.substr(dash + 1));
    for (int64_t i = first; i <= last && i - first < 65536; ++i)
      numbers.insert(static_cast<int>(i));
  }
  return numbers;
}

// Returns the word in brackets of "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return line.substr(open + 1, close - open - 1);
}

void read_numa(MachineFacts& facts, const fs::path& root, const std::set<int>& cores,
               const std::set<int>& memory) {
  int nodes = 0, of_cores = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node") || name.size() == 4) continue;
    if (name.find_first_not_of("0123456789", 4) != std::string::npos) continue;
    ++nodes;
    bool ours = false;
    for (int core : numbers_of(line_of(entry.path() / "cpulist"))) {
      ours = ours || cores.contains(core);
    }
    of_cores += ours ? 1 : 0;
  }
  if (nodes == 0) return;
  facts.numa_nodes = nodes;
  facts.numa_nodes_of_cores = of_cores;
  facts.numa_nodes_of_memory = memory.empty() ? nodes : static_cast<int>(memory.size());
}

ClockFacts read_clocks(const fs::path& root, const std::set<int>& cores) {
  const fs::path all = root / "sys/devices/system/cpu";
  ClockFacts clocks;
  for (int core : cores) {
    const fs::path one = all / ("cpu" + std::to_string(core));
    clocks.throttled += number_of(line_of(one / "thermal_throttle/core_throttle_count"));
    if (!clocks.governor.empty()) continue;
    clocks.driver = line_of(one / "cpufreq/scaling_driver");
    clocks.governor = line_of(one / "cpufreq/scaling_governor");
    clocks.limit_khz = number_of(line_of(one / "cpufreq/scaling_max_freq"));
    clocks.most_khz = number_of(line_of(one / "cpufreq/cpuinfo_max_freq"));
  }
  return clocks;
}

}  // namespace

MachineFacts read_machine_facts(const fs::path& root) {
  MachineFacts facts;
  facts.machine = probe_machine();
  const HostMemory memory = read_host_memory(root);
  facts.machine.ram_total = memory.total;
  facts.machine.ram_available = memory.available;
  facts.machine.cgroup_limit = memory.cgroup_limit;
  facts.machine.cgroup_available = memory.cgroup_available;
  facts.gpus = find_gpus(root / "sys/bus/pci/devices");
  facts.cuda_version = cuda_driver_version();

  const fs::path self = root / "proc/self/status";
  const auto rights = static_cast<uint64_t>(number_of(word_behind(self, "CapEff:"), 16));
  facts.may_lock_all = (rights & kCapIpcLock) != 0;
  facts.shared_memory = free_shared_memory((root / "dev/shm").string());
  facts.huge_pages = chosen_word(line_of(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  facts.shared_huge_pages =
      chosen_word(line_of(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  facts.wsl2 = is_wsl2(root);
  const fs::path meminfo = root / "proc/meminfo";
  facts.reserved_huge_pages = number_of(word_behind(meminfo, "HugePages_Total:")) *
                              number_of(word_behind(meminfo, "Hugepagesize:")) * kKiB;
  facts.ring_disabled = number_of(line_of(root / "proc/sys/kernel/io_uring_disabled"));

  const std::set<int> cores = numbers_of(word_behind(self, "Cpus_allowed_list:"));
  const std::set<int> online = numbers_of(line_of(root / "sys/devices/system/cpu/online"));
  facts.cores_online = static_cast<int>(online.size());
  for (int core : cores) facts.cores_allowed += online.contains(core) ? 1 : 0;
  facts.core_quota = read_core_quota(root);
  read_numa(facts, root, cores, numbers_of(word_behind(self, "Mems_allowed_list:")));
  facts.clocks = read_clocks(root, cores);
  return facts;
}

// Probes a directory: creates a file, reads it with io_uring and removes it.

namespace {

constexpr Bytes kFileBytes = kMiB;
// These constants are missing in older kernel headers.
constexpr long kXfs = 0x58465342, kZfs = 0x2fc12fc1, kLustre = 0x0bd00bd0, kFuse = 0x65735546;
constexpr long kCifs = static_cast<long>(0xff534d42), kSmb2 = static_cast<long>(0xfe534d42);

std::string name_of_file_system(long type) {
  static constexpr struct {
    long type;
    const char* name;
  } kNames[] = {{EXT4_SUPER_MAGIC, "ext4"},
                {kXfs, "xfs"},
                {BTRFS_SUPER_MAGIC, "btrfs"},
                {F2FS_SUPER_MAGIC, "f2fs"},
                {kZfs, "zfs"},
                {OVERLAYFS_SUPER_MAGIC, "overlay"},
                {TMPFS_MAGIC, "tmpfs"},
                {RAMFS_MAGIC, "ramfs"},
                {NFS_SUPER_MAGIC, "nfs"},
                {kCifs, "cifs"},
                {kSmb2, "smb"},
                {kLustre, "lustre"},
                {CEPH_SUPER_MAGIC, "ceph"},
                {V9FS_MAGIC, "9p"},
                {kFuse, "fuse"}};
  for (const auto& known : kNames) {
    if (known.type == type) return known.name;
  }
  return formatted("0x%lx", type);
}

}  // namespace

DirectoryFacts try_directory(const std::string& purpose, const std::string& directory) {
  DirectoryFacts facts;
  facts.purpose = purpose;
  facts.path = nearest_existing(directory);
  struct statfs kind{};
  if (::statfs(facts.path.c_str(), &kind) == 0) {
    facts.file_system = name_of_file_system(static_cast<long>(kind.f_type));
    facts.free = static_cast<Bytes>(kind.f_bavail) * static_cast<Bytes>(kind.f_bsize);
  }
  const std::string path = facts.path + "/.longshore-check-" + std::to_string(::getpid()) + ".tmp";
  try {
    const DirectFile file({.path = path, .size_bytes = kFileBytes});
    facts.direct = file.direct();
    IoRing::try_make(&file, {}, facts.ring_trouble);
  } catch (const Error& error) {
    facts.file_trouble = error.what();
  }
  ::unlink(path.c_str());
  return facts;
}

namespace {

// A drive's locked I/O memory is twice its chunks in flight, 1 GiB for the deepest queue.
constexpr Bytes kEnoughLocked = kGiB;
constexpr Bytes kLittleRoom = 4 * kGiB;
// Runs cannot use reserved huge pages, because they ask for transparent ones.
constexpr Bytes kReservedShare = 20;
constexpr int kOldestCompute = 8;

std::string plural(int count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

Diagnosis check_driver(const MachineFacts& facts) {
  const FoundGpus& gpus = facts.gpus;
  if (gpus.usable.empty() && gpus.present.empty()) {
    return {"driver", Health::kOk, "no NVIDIA GPU: runs compute on the CPU"};
  }
  if (gpus.usable.empty()) {
    return {"driver", Health::kFailed,
            "this machine has a GPU (" + gpus.present.front() + "), but CUDA cannot use it" +
                (gpus.trouble.empty() ? "" : ": " + gpus.trouble),
            "install NVIDIA's driver for CUDA 13 (580 or newer); in a container, start it with "
            "--gpus all"};
  }
  std::string found = "CUDA " + facts.cuda_version;
  for (const CudaDevice& gpu : gpus.usable) {
    found += ", " + gpu.name + " with " + format_bytes(gpu.memory_bytes);
  }
  for (const CudaDevice& gpu : gpus.usable) {
    if (gpu.compute_major >= kOldestCompute) continue;
    return {"driver", Health::kFailed,
            gpu.name + " has compute capability " + std::to_string(gpu.compute_major) + "." +
                std::to_string(gpu.compute_minor) + "; this build supports 8.0 and newer",
            "device.kind = \"cpu\" trains on the CPU"};
  }
  for (const CudaDevice& gpu : gpus.usable) {
    if (gpu.maps_memory) continue;
    return {"driver", Health::kWarning, gpu.name + " " + kFixedSegments,
            "if a run ends for lack of device memory, lower train.micro_batch"};
  }
  return {"driver", Health::kOk, found};
}

// NCCL of several ranks exchanges data there where GPUs cannot read each other's memory.
Diagnosis check_shared_memory(const MachineFacts& facts) {
  const std::string lack = lack_of_shared_memory(facts.shared_memory, facts.gpus.usable.size());
  if (lack.empty()) {
    return {"shared memory", Health::kOk, "/dev/shm: " + format_bytes(facts.shared_memory)};
  }
  return {"shared memory", Health::kWarning, lack, kMoreSharedMemory};
}

Diagnosis check_memlock(const MachineFacts& facts) {
  const std::optional<Bytes> limit = facts.machine.memlock_limit;
  if (facts.may_lock_all) return {"memlock", Health::kOk, "no limit for this user"};
  if (!limit) return {"memlock", Health::kOk, "unlimited"};
  if (*limit >= kEnoughLocked) return {"memlock", Health::kOk, format_bytes(*limit)};
  return {"memlock", Health::kWarning,
          "at most " + format_bytes(*limit) +
              " may be locked: I/O memory of drives beyond that is not registered, and reads cost "
              "more CPU",
          "ulimit -l unlimited (\"memlock\" in /etc/security/limits.conf; docker run --ulimit "
          "memlock=-1; LimitMEMLOCK= of a systemd unit)"};
}

// WSL2 and some virtual machines let a GPU use only a part of the host's memory.
Diagnosis check_pinned(const MachineFacts& facts) {
  const std::string where = facts.wsl2 ? "WSL2: " : "";
  if (facts.pinnable.value_or(kPinTrialBytes) >= kPinTrialBytes) {
    return {"pinned memory", Health::kOk,
            where + (facts.pinnable ? "GPUs can use " + format_bytes(*facts.pinnable) +
                                          " of host memory and may be able to use more"
                                    : "not tried")};
  }
  return {"pinned memory", Health::kWarning,
          where + "GPUs can use " + format_bytes(*facts.pinnable) +
              " of host memory directly; the rest is copied through small buffers, at the speed of "
              "one thread",
          "Linux itself instead of WSL2; plans count with the limit, or set offload.pinned_memory"};
}

// Parameters that ranks share are in shared memory.
bool shares_small_pages(const MachineFacts& facts) {
  return facts.gpus.usable.size() > 1 &&
         (facts.shared_huge_pages == "never" || facts.shared_huge_pages == "deny");
}

Diagnosis check_huge_pages(const MachineFacts& facts) {
  if (shares_small_pages(facts)) {
    return {"huge pages", Health::kWarning,
            "shared memory has none (shmem_enabled = " + facts.shared_huge_pages +
                "): with fsdp.gather = \"host\" runs register it with GPUs in pages of 4 KiB, "
                "slowly",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, as root"};
  }
  if (facts.huge_pages == "always" || facts.huge_pages == "madvise") {
    return {"huge pages", Health::kOk, "transparent huge pages: " + facts.huge_pages};
  }
  return {"huge pages", Health::kWarning,
          facts.huge_pages.empty() ? "the kernel has no transparent huge pages"
                                   : "transparent huge pages: " + facts.huge_pages +
                                         ": the host's memory is in pages of 4 KiB",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"};
}

Diagnosis check_memory(const MachineFacts& facts) {
  const Machine& machine = facts.machine;
  const std::string available = format_bytes(machine.host_available()) + " available";
  if (machine.cgroup_limit && *machine.cgroup_limit < machine.ram_total) {
    return {"memory", Health::kWarning,
            "the control group may take " + format_bytes(*machine.cgroup_limit) + " of " +
                format_bytes(machine.ram_total) + "; " + available,
            "plans count with that limit; docker run --memory, MemoryMax= of a systemd unit or "
            "Slurm's --mem raise it"};
  }
  if (facts.reserved_huge_pages > machine.ram_total / kReservedShare) {
    return {"memory", Health::kWarning,
            format_bytes(facts.reserved_huge_pages) + " of " + format_bytes(machine.ram_total) +
                " are set aside for huge pages that runs do not use; " + available,
            "sysctl vm.nr_hugepages=0, as root"};
  }
  return {"memory", Health::kOk, format_bytes(machine.ram_total) + ", " + available};
}

Diagnosis check_cores(const MachineFacts& facts) {
  const int online = facts.cores_online;
  if (facts.core_quota && *facts.core_quota < std::max(facts.cores_allowed, 1)) {
    return {"cores", Health::kWarning,
            "the control group may use " + std::to_string(*facts.core_quota) + " of " +
                plural(online, "core"),
            "docker run --cpus, CPUQuota= of a systemd unit or Slurm's --cpus-per-task raise it"};
  }
  if (facts.cores_allowed < online) {
    return {"cores", Health::kWarning,
            "this process may use " + std::to_string(facts.cores_allowed) + " of " +
                plural(online, "core"),
            "set by taskset, --cpuset-cpus of docker or Slurm's --cpus-per-task"};
  }
  return {"cores", Health::kOk,
          std::to_string(facts.machine.physical_cores) + " physical of " +
              plural(facts.machine.logical_cores, "thread") + ", " + facts.machine.cpu_model};
}

Diagnosis check_simd(const MachineFacts& facts) {
  const std::string name(name_of(facts.machine.simd));
  if (facts.machine.simd != SimdLevel::kBaseline) return {"simd", Health::kOk, name};
  return {"simd", Health::kWarning, name + ": no AVX2, so updates are computed slowly",
          "in a virtual machine, give it the host's CPU (qemu: -cpu host)"};
}

Diagnosis check_numa(const MachineFacts& facts) {
  if (facts.numa_nodes_of_memory < facts.numa_nodes) {
    return {"numa", Health::kWarning,
            "memory may come from " + std::to_string(facts.numa_nodes_of_memory) + " of " +
                plural(facts.numa_nodes, "node"),
            "plans count with all of it: set offload.host_memory to what those nodes have"};
  }
  if (facts.numa_nodes_of_cores > 1) {
    return {"numa", Health::kWarning,
            "the cores belong to " + plural(facts.numa_nodes_of_cores, "node") +
                ": memory of another node is slower",
            "a rank for each node: longshore launch, each under numactl --cpunodebind=N "
            "--preferred=N"};
  }
  return {"numa", Health::kOk, plural(facts.numa_nodes, "node")};
}

std::string gigahertz(int64_t khz) {
  return formatted("%.2f GHz", static_cast<double>(khz) * 1e-6);
}

Diagnosis check_clocks(const MachineFacts& facts) {
  const ClockFacts& clocks = facts.clocks;
  if (clocks.throttled > 0) {
    return {"clocks", Health::kWarning,
            "cores were slowed down " + std::to_string(clocks.throttled) +
                " times since the start because they were too hot",
            "check fans and dust; cat /sys/class/thermal/thermal_zone*/temp shows the heat"};
  }
  if (clocks.governor.empty()) {
    return {"clocks", Health::kOk, "the kernel reports none, as in most virtual machines"};
  }
  // These drivers have a governor named powersave that is not slow.
  const bool own_governor =
      clocks.driver.starts_with("intel_pstate") || clocks.driver.starts_with("amd-pstate");
  if (clocks.governor == "powersave" && !own_governor) {
    return {"clocks", Health::kWarning, "governor powersave: cores stay at their lowest clock",
            "cpupower frequency-set -g performance, as root"};
  }
  if (clocks.limit_khz > 0 && clocks.limit_khz < clocks.most_khz / 10 * 9) {
    return {
        "clocks", Health::kWarning,
        "cores are held at " + gigahertz(clocks.limit_khz) + " of " + gigahertz(clocks.most_khz),
        "cpupower frequency-set -u " + std::to_string(clocks.most_khz) + "kHz, as root"};
  }
  return {"clocks", Health::kOk,
          "governor " + clocks.governor + ", up to " + gigahertz(clocks.most_khz)};
}

bool is_of_drives(const DirectoryFacts& directory) {
  return directory.purpose == "offload.nvme";
}

Diagnosis check_file_system(const DirectoryFacts& directory) {
  static const std::set<std::string> kMemory = {"tmpfs", "ramfs"};
  static const std::set<std::string> kNetwork = {"nfs", "cifs", "smb", "lustre", "ceph", "9p"};
  const std::string& kind = directory.file_system;
  const std::string what = directory.purpose + " " + directory.path + ": ";
  const std::string found = what + kind + ", " + format_bytes(directory.free) + " free";
  if (!directory.file_trouble.empty()) {
    return {"file system", Health::kFailed, what + directory.file_trouble,
            "let this user write there, or name another directory"};
  }
  if (kMemory.contains(kind)) {
    return {"file system", Health::kWarning,
            found + ": this is tmpfs, its files are lost with the machine",
            "name a directory on a drive (df -T shows which are)"};
  }
  if (is_of_drives(directory) && kNetwork.contains(kind)) {
    return {"file system", Health::kWarning, found + ": this is a network file system",
            "name a directory on a drive of this machine"};
  }
  if (is_of_drives(directory) && !directory.direct) {
    return {"file system", Health::kWarning,
            found + ": it has no direct I/O, so state goes through the page cache",
            "name a directory on ext4 or xfs; in a container, mount one from outside"};
  }
  if (directory.free < kLittleRoom) {
    return {"file system", Health::kWarning, found,
            "longshore plan says what a run's files and checkpoints need"};
  }
  return {"file system", Health::kOk, found};
}

Diagnosis check_ring(const DirectoryFacts& directory, int64_t disabled) {
  const std::string what = directory.purpose + " " + directory.path + ": ";
  if (directory.ring_trouble.empty()) {
    return {"io_uring", Health::kOk, what + "a file was read with it"};
  }
  const bool by_kernel = disabled != 0;
  return {"io_uring", Health::kWarning,
          what + directory.ring_trouble + ": threads do the reading, at more of the CPU",
          by_kernel ? "sysctl kernel.io_uring_disabled=0, as root (it is " +
                          std::to_string(disabled) + ")"
                    : "in a container, allow its system calls (docker run --security-opt "
                      "seccomp=...); the kernel must be 5.6 or newer"};
}

}  // namespace

std::string_view name_of(Health health) {
  static constexpr std::array<std::string_view, 3> kNames = {"ok", "warn", "fail"};
  return kNames[static_cast<size_t>(health)];
}

std::vector<Diagnosis> diagnose(const MachineFacts& facts) {
  std::vector<Diagnosis> diagnoses = {
      check_driver(facts),        check_cores(facts), check_simd(facts),       check_clocks(facts),
      check_memory(facts),        check_numa(facts),  check_huge_pages(facts), check_memlock(facts),
      check_shared_memory(facts), check_pinned(facts)};
  for (const DirectoryFacts& directory : facts.directories) {
    diagnoses.push_back(check_file_system(directory));
    if (directory.file_trouble.empty()) {
      diagnoses.push_back(check_ring(directory, facts.ring_disabled));
    }
  }
  return diagnoses;
}

bool any_failed(const std::vector<Diagnosis>& diagnoses) {
  return std::ranges::any_of(diagnoses,
                             [](const Diagnosis& one) { return one.health == Health::kFailed; });
}

std::string format_diagnoses(const std::vector<Diagnosis>& diagnoses) {
  std::string text;
  for (const Diagnosis& one : diagnoses) {
    std::string head(name_of(one.health));
    head.resize(6, ' ');
    head += one.check;
    head.resize(20, ' ');
    text += head + printable(one.found, 1024) + "\n";
    if (!one.advice.empty()) text += std::string(20, ' ') + "-> " + one.advice + "\n";
  }
  return text;
}

Json to_json(const std::vector<Diagnosis>& diagnoses) {
  Json checks = Json::array();
  int64_t warnings = 0, failed = 0;
  for (const Diagnosis& one : diagnoses) {
    warnings += one.health == Health::kWarning ? 1 : 0;
    failed += one.health == Health::kFailed ? 1 : 0;
    checks.push_back({{"check", one.check},
                      {"result", name_of(one.health)},
                      {"found", one.found},
                      {"advice", one.advice}});
  }
  return {{"ok", failed == 0}, {"failed", failed}, {"warnings", warnings}, {"checks", checks}};
}

}  // namespace longshore
