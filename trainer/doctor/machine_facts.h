// MachineFacts: what `doctor` judges, as plain values: what the kernel says of itself, and what was
// tried. Tests make their own, or a folder of files like /proc and /sys. Main thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "offload/plan/machine.h"
#include "trainer/device/device_choice.h"

namespace longshore {

struct DirectoryFacts {
  std::string purpose;      // "run.dir", "offload.nvme"
  std::string path;         // or the nearest one above that exists
  std::string file_system;  // "ext4"; a number where it has no name here
  Bytes free = 0;
  // From a small file that was made there, read and removed.
  std::string file_trouble = {};  // why it could not be made; empty: it was
  bool direct = true;             // past the page cache
  std::string ring_trouble = {};  // why io_uring did not read it; empty: it did
};

struct ClockFacts {
  std::string driver = {}, governor = {};  // of the first core; empty: the kernel tells none
  int64_t limit_khz = 0, most_khz = 0;     // what is allowed, what the core can; 0: not known
  int64_t throttled = 0;                   // times that cores were too hot, since the start
};

struct MachineFacts {
  Machine machine;
  FoundGpus gpus;
  std::string cuda_version;  // that the driver serves; empty: no driver

  bool may_lock_all = false;  // no limit on locked memory holds for this process
  std::string huge_pages;     // "always", "madvise", "never"; empty: the kernel has none
  Bytes reserved_huge_pages = 0;
  int64_t ring_disabled = 0;  // kernel.io_uring_disabled

  int cores_online = 0;           // 0: not known
  int cores_allowed = 0;          // to this process
  std::optional<int> core_quota;  // of its control group
  int numa_nodes = 1;
  int numa_nodes_of_cores = 1;   // that the allowed cores belong to
  int numa_nodes_of_memory = 1;  // that memory may come from
  ClockFacts clocks;

  std::vector<DirectoryFacts> directories;
};

// Files are read below `root`, "/" but in tests.
MachineFacts read_machine_facts(const std::filesystem::path& root = "/");

// Makes a small file there, reads it with io_uring and removes it.
DirectoryFacts try_directory(const std::string& purpose, const std::string& directory);

}  // namespace longshore
