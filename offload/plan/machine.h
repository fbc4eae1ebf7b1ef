// Machine: the cores, memory, limits and GPUs that a plan may use. Plain values, so that plans can
// be made for a machine other than the local one.
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
  int logical_cores = 1;   // usable by this process: affinity and cgroup quota
  int physical_cores = 1;  // physical cores among them
  Bytes ram_total = 0;
  Bytes ram_available = 0;                // MemAvailable: free or reclaimable at once
  std::optional<Bytes> cgroup_limit;      // the tightest memory limit above the process
  std::optional<Bytes> cgroup_available;  // unused part of that limit
  std::optional<Bytes> memlock_limit;     // RLIMIT_MEMLOCK; nullopt: none
  std::vector<CudaDevice> gpus;
  // Bytes that a plan may use of a rank's GPU, if probed; the minimum over all ranks.
  std::optional<Bytes> gpu_room;
  // Host memory that GPUs can register in all, where a limit was found; the minimum over ranks.
  std::optional<Bytes> pinnable;

  // Returns the host memory that a run may plan with.
  Bytes host_available() const;
  // Returns the machine's memory, or the control group's limit if lower, used or not.
  Bytes host_installed() const;
};

Machine probe_machine();

// Returns whether the kernel is WSL2's, from the files below `root` ("/" except in tests).
bool is_wsl2(const std::filesystem::path& root = "/");

// An estimate of GPU memory for CUDA's context and a process's loaded kernels, outside of the cap.
// It is not measured on a GPU yet.
inline constexpr Bytes kGpuProcessBytes = 512 * kMiB;

// Returns the bytes that a plan may use of a GPU with `memory` bytes, of which `free` are left
// beside this process's context and other processes.
Bytes gpu_room(Bytes memory, Bytes free);

// The parts of probe_machine that read files below `root` ("/" except in tests).
struct HostMemory {
  Bytes total = 0;
  Bytes available = 0;
  std::optional<Bytes> cgroup_limit;
  std::optional<Bytes> cgroup_available;
};
HostMemory read_host_memory(const std::filesystem::path& root);
// Returns the cores that a cgroup's quota allows, rounded up; nullopt without a quota.
std::optional<int> read_core_quota(const std::filesystem::path& root);

}  // namespace longshore
