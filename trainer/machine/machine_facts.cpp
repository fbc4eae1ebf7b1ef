#include "trainer/machine/machine_facts.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/texts.h"
#include "device/cuda_runtime.h"
#include "nvme/drive/block_file.h"
#include "nvme/drive/io_ring.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCapIpcLock = uint64_t{1} << 14;

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t number_of(const std::string& text, int base = 10) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

// Returns the first word behind the key, as in "Cpus_allowed_list:\t0-3"; "" if it is missing.
std::string value_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return value;
  }
  return "";
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
  const auto rights = static_cast<uint64_t>(number_of(value_of(self, "CapEff:"), 16));
  facts.may_lock_all = (rights & kCapIpcLock) != 0;
  facts.huge_pages = chosen_word(line_of(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  const fs::path meminfo = root / "proc/meminfo";
  facts.reserved_huge_pages = number_of(value_of(meminfo, "HugePages_Total:")) *
                              number_of(value_of(meminfo, "Hugepagesize:")) * kKiB;
  facts.ring_disabled = number_of(line_of(root / "proc/sys/kernel/io_uring_disabled"));

  const std::set<int> cores = numbers_of(value_of(self, "Cpus_allowed_list:"));
  const std::set<int> online = numbers_of(line_of(root / "sys/devices/system/cpu/online"));
  facts.cores_online = static_cast<int>(online.size());
  for (int core : cores) facts.cores_allowed += online.contains(core) ? 1 : 0;
  facts.core_quota = read_core_quota(root);
  read_numa(facts, root, cores, numbers_of(value_of(self, "Mems_allowed_list:")));
  facts.clocks = read_clocks(root, cores);
  return facts;
}

// Probes a directory: creates a file, reads it with io_uring and removes it.

namespace {

namespace fs = std::filesystem;

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

fs::path nearest_existing(const std::string& directory) {
  std::error_code ignored;
  fs::path path = fs::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
  return path;
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

}  // namespace longshore
