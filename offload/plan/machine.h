// Machine: what the plan may count on: cores, memory and their limits, GPUs. Plain values, so that
// plans can be made for machines that are not there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/cuda_runtime.h"
#include "offload/simd_level.h"

namespace longshore {

struct Machine {
  std::string cpu_model;
  SimdLevel simd = SimdLevel::kBaseline;
  int logical_cores = 1;   // that this process may use: affinity and cgroup quota
  int physical_cores = 1;  // distinct cores among them
  Bytes ram_total = 0;
  Bytes ram_available = 0;                // MemAvailable: free, or freed at once
  std::optional<Bytes> cgroup_limit;      // the tightest memory limit above the process
  std::optional<Bytes> cgroup_available;  // what that limit leaves
  std::optional<Bytes> memlock_limit;     // RLIMIT_MEMLOCK; nullopt = none
  std::vector<CudaDevice> gpus;
  // What a plan may take of the rank's own GPU, where it was asked; of all ranks the least.
  std::optional<Bytes> gpu_room;

  // Host memory that a run may plan with.
  Bytes host_available() const;
  // What there is at all, used or not: its memory, or what its control group may take of it.
  Bytes host_installed() const;
};

Machine probe_machine();

// An estimate of what CUDA's context and the kernels that a process loads take of a GPU, outside of
// the cap. It is not measured on a GPU yet.
inline constexpr Bytes kGpuProcessBytes = 512 * kMiB;

// What a plan may take of a GPU with so much memory, of which `free` bytes are left beside the
// process's context there and what other processes have.
Bytes gpu_room(Bytes memory, Bytes free);

// The parts of the probe that read files, below `root` ("/" but in tests).
struct HostMemory {
  Bytes total = 0;
  Bytes available = 0;
  std::optional<Bytes> cgroup_limit;
  std::optional<Bytes> cgroup_available;
};
HostMemory read_host_memory(const std::filesystem::path& root);
// The cores a cgroup's quota allows, rounded up; nullopt without a quota.
std::optional<int> read_core_quota(const std::filesystem::path& root);

}  // namespace longshore
