// Diagnosis: evaluates a machine's properties for runs, one line per check, with advice where a
// change helps. Pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "offload/plan/machine.h"
#include "trainer/device/device_choice.h"

namespace longshore {

// MachineFacts: the machine properties that `check machine` evaluates, as plain values: kernel
// information and probe results. Tests construct them or use files like /proc and /sys. Main
// thread.

struct DirectoryFacts {
  std::string purpose;      // "run.dir", "offload.nvme"
  std::string path;         // the directory or its nearest existing parent
  std::string file_system;  // "ext4", or a number if unknown
  Bytes free = 0;
  // The following come from a small file that the probe created, read and removed.
  std::string file_trouble = {};  // why creation failed; empty: no error
  bool direct = true;             // O_DIRECT works
  std::string ring_trouble = {};  // why io_uring failed; empty: no error
};

struct ClockFacts {
  std::string driver = {}, governor = {};  // first core; empty: the kernel reports none
  int64_t limit_khz = 0, most_khz = 0;     // allowed and maximum clock; 0: unknown
  int64_t throttled = 0;                   // thermal throttling events since boot
};

struct MachineFacts {
  Machine machine;
  FoundGpus gpus;
  std::string cuda_version;  // version that the driver supports; empty: no driver

  bool may_lock_all = false;      // no locked-memory limit for this process
  Bytes shared_memory = 0;        // free in /dev/shm
  std::string huge_pages;         // "always", "madvise", "never"; empty: unsupported
  std::string shared_huge_pages;  // of shared memory, also "advise", "within_size"; empty: unknown
  bool wsl2 = false;
  std::optional<Bytes> pinnable;  // what GPUs registered of kPinTrialBytes; nullopt: not tried
  Bytes reserved_huge_pages = 0;
  int64_t ring_disabled = 0;  // value of kernel.io_uring_disabled

  int cores_online = 0;           // 0: unknown
  int cores_allowed = 0;          // usable by this process
  std::optional<int> core_quota;  // cores allowed by its control group
  int numa_nodes = 1;
  int numa_nodes_of_cores = 1;   // nodes of the allowed cores
  int numa_nodes_of_memory = 1;  // nodes that memory may come from
  ClockFacts clocks;

  std::vector<DirectoryFacts> directories;
};

// Reads files below `root`, which is "/" except in tests.
MachineFacts read_machine_facts(const std::filesystem::path& root = "/");

// Creates a small file in the directory, reads it with io_uring and removes it.
DirectoryFacts try_directory(const std::string& purpose, const std::string& directory);

enum class Health : uint8_t {
  kOk,
  kWarning,  // runs work, but could be faster
  kFailed,   // runs that need it will fail
};
std::string_view name_of(Health health);  // "ok", "warn" or "fail"

struct Diagnosis {
  std::string check;  // "memlock", "io_uring"
  Health health = Health::kOk;
  std::string found;
  std::string advice = {};  // empty if no change is needed
};

std::vector<Diagnosis> diagnose(const MachineFacts& facts);
bool any_failed(const std::vector<Diagnosis>& diagnoses);

// These format the results as lines for people and as one JSON object.
std::string format_diagnoses(const std::vector<Diagnosis>& diagnoses);
Json to_json(const std::vector<Diagnosis>& diagnoses);

}  // namespace longshore
