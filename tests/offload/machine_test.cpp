// The probe of a machine over made-up /proc and /sys trees, and on the local machine.
#include "offload/plan/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace longshore {
namespace {

namespace fs = std::filesystem;

// FakeRoot: a tree of files below a temporary folder, removed at the end.
class FakeRoot {
 public:
  FakeRoot()
      : path_(fs::temp_directory_path() /
              ("longshore_root_" + std::to_string(getpid()) + "_" + std::to_string(++count_))) {
    write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n");
  }
  ~FakeRoot() { fs::remove_all(path_); }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  const fs::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

// Memory is read without control groups.
TEST(Machine, ReadsMemoryWithoutControlGroups) {
  const FakeRoot root;
  const HostMemory memory = read_host_memory(root.path());
  EXPECT_EQ(memory.total, 16 * kGiB);
  EXPECT_EQ(memory.available, 8 * kGiB);
  EXPECT_FALSE(memory.cgroup_limit.has_value());
  EXPECT_FALSE(read_core_quota(root.path()).has_value());
}

// The tightest limit of a version 2 tree of control groups counts.
TEST(Machine, TakesTheTightestLimitOfAVersion2Tree) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/user/job\n");
  root.write("sys/fs/cgroup/user/memory.max", "3221225472\n");
  root.write("sys/fs/cgroup/user/memory.current", "2147483648\n");
  root.write("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 536870912\n");
  root.write("sys/fs/cgroup/user/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/user/job/cpu.max", "250000 100000\n");
  root.write("sys/fs/cgroup/user/cpu.max", "max 100000\n");
  const HostMemory memory = read_host_memory(root.path());
  EXPECT_EQ(memory.cgroup_limit, 3 * kGiB);
  EXPECT_EQ(memory.cgroup_available, 1 * kGiB + 512 * kMiB) << "cached files are given up first";
  EXPECT_EQ(read_core_quota(root.path()), 3);
}

// Version 1 control groups are read; its huge number means no limit.
TEST(Machine, ReadsVersion1AndItsWayToSayNoLimit) {
  FakeRoot root;
  root.write("proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  root.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741000\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const HostMemory memory = read_host_memory(root.path());
  EXPECT_EQ(memory.cgroup_limit, kGiB);
  EXPECT_EQ(memory.cgroup_available, 824);
  EXPECT_FALSE(read_core_quota(root.path()).has_value());
}

// Invisible paths and broken files are ignored.
TEST(Machine, SurvivesAPathThatTheContainerCannotSeeAndBrokenFiles) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/../../host/only\nnonsense\n::\n");
  root.write("sys/fs/cgroup/memory.max", "2147483648\n");
  root.write("sys/fs/cgroup/memory.current", "-7x\n");
  root.write("sys/fs/cgroup/cpu.max", "\n");
  root.write("proc/meminfo", "MemTotal: many kB\n");
  const HostMemory memory = read_host_memory(root.path());
  EXPECT_EQ(memory.total, 0);
  EXPECT_EQ(memory.cgroup_limit, 2 * kGiB);
  EXPECT_FALSE(read_core_quota(root.path()).has_value());
}

// Plans use the tighter of memory and control group.
TEST(Machine, PlansWithTheTighterOfMemoryAndControlGroup) {
  Machine machine;
  machine.ram_available = 10;
  EXPECT_EQ(machine.host_available(), 10);
  machine.cgroup_available = 4;
  EXPECT_EQ(machine.host_available(), 4);
  machine.cgroup_available = 40;
  EXPECT_EQ(machine.host_available(), 10);
}

// The probe of the local machine gives possible values.
TEST(Machine, ProbesTheOneThatIsHere) {
  const Machine machine = probe_machine();
  EXPECT_GE(machine.physical_cores, 1);
  EXPECT_GE(machine.logical_cores, machine.physical_cores);
  EXPECT_GT(machine.ram_total, 0);
  EXPECT_GT(machine.host_available(), 0);
  EXPECT_LE(machine.ram_available, machine.ram_total);
  EXPECT_FALSE(machine.cpu_model.empty());
}

}  // namespace
}  // namespace longshore
