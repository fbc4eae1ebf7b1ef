#include "offload/plan/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"

#include <algorithm>
#include <fstream>
#include <set>

namespace longshore {
namespace {

// The maximum that Linux supports.
constexpr int kMostCores = 8192;

// An estimate, not yet measured on a GPU: memory that the driver keeps for a process, which is its
// context and the code of kernels that are loaded at first use.
constexpr Bytes kGpuContextBytes = kGiB;

std::vector<int> cores_of_this_process() {
  std::vector<int> cores;
  cpu_set_t* set = CPU_ALLOC(kMostCores);
  const size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int core = 0; core < kMostCores; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), bytes, set)) cores.push_back(core);
    }
  }
  CPU_FREE(set);
  return cores;
}

// Counts cores: hardware threads of one core have equal lists of siblings.
int count_physical(const std::vector<int>& cores) {
  std::set<std::string> siblings;
  for (int core : cores) {
    const auto line = first_line("/sys/devices/system/cpu/cpu" + std::to_string(core) +
                                 "/topology/thread_siblings_list");
    if (!line) return static_cast<int>(cores.size());
    siblings.insert(*line);
  }
  return static_cast<int>(siblings.size());
}

std::string read_cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown CPU";
}

std::optional<Bytes> read_memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return static_cast<Bytes>(limit.rlim_cur);
}

}  // namespace

Bytes Machine::host_available() const {
  return cgroup_available ? std::min(ram_available, *cgroup_available) : ram_available;
}

Bytes Machine::host_installed() const {
  return cgroup_limit ? std::min(ram_total, *cgroup_limit) : ram_total;
}

Bytes gpu_room(Bytes memory, Bytes free) {
  return std::max<Bytes>(0, std::min(memory - kGpuContextBytes, free - kGpuProcessBytes));
}

bool is_wsl2(const std::filesystem::path& root) {
  const std::string kernel = first_line(root / "proc/version").value_or("");
  return kernel.find("microsoft") != std::string::npos || kernel.find("WSL2") != std::string::npos;
}

Machine probe_machine() {
  Machine machine;
  machine.cpu_model = read_cpu_model();
  machine.simd = best_simd_level();
  const std::vector<int> cores = cores_of_this_process();
  const int quota = read_core_quota("/").value_or(kMostCores);
  machine.logical_cores = std::clamp(static_cast<int>(cores.size()), 1, quota);
  machine.physical_cores = std::clamp(count_physical(cores), 1, quota);
  const HostMemory memory = read_host_memory("/");
  machine.ram_total = memory.total;
  machine.ram_available = memory.available;
  machine.cgroup_limit = memory.cgroup_limit;
  machine.cgroup_available = memory.cgroup_available;
  machine.memlock_limit = read_memlock_limit();
  machine.gpus = cuda_devices();
  return machine;
}

}  // namespace longshore
