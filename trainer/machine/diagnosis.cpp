#include "trainer/machine/diagnosis.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/texts.h"

namespace longshore {
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
  return {"driver", Health::kOk, found};
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

Diagnosis check_huge_pages(const MachineFacts& facts) {
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
      check_driver(facts), check_cores(facts), check_simd(facts),       check_clocks(facts),
      check_memory(facts), check_numa(facts),  check_huge_pages(facts), check_memlock(facts)};
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
    head.resize(19, ' ');
    text += head + printable(one.found, 1024) + "\n";
    if (!one.advice.empty()) text += std::string(19, ' ') + "-> " + one.advice + "\n";
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
