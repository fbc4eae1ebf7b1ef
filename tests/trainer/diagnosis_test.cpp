// Diagnosis: every known fault is provoked, in facts or in files like the kernel's, and reported
// with advice; a good machine has none.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/json.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/commands/command_line.h"
#include "trainer/machine/diagnosis.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

MachineFacts good_machine() {
  MachineFacts facts;
  facts.machine.cpu_model = "Test CPU";
  facts.machine.simd = SimdLevel::kAvx2;
  facts.machine.logical_cores = 8;
  facts.machine.physical_cores = 4;
  facts.machine.ram_total = 64 * kGiB;
  facts.machine.ram_available = 60 * kGiB;
  facts.gpus = {};
  facts.huge_pages = "madvise";
  facts.cores_online = facts.cores_allowed = 8;
  facts.clocks = {
      .driver = "acpi-cpufreq", .governor = "schedutil", .limit_khz = 4000000, .most_khz = 4000000};
  facts.directories = {
      {.purpose = "offload.nvme", .path = "/drive", .file_system = "ext4", .free = 900 * kGiB}};
  return facts;
}

// A good machine has no fault and gets no advice.
TEST(Diagnosis, HasNothingToSayAboutAGoodMachine) {
  for (const Diagnosis& one : diagnose(good_machine())) {
    EXPECT_EQ(one.health, Health::kOk) << one.check << ": " << one.found;
    EXPECT_EQ(one.advice, "") << one.check;
  }
}

struct Fault {
  std::string check;
  Health health;
  std::string found;   // part of the description
  std::string advice;  // part of the advice
  std::function<void(MachineFacts&)> provoke;
};

// These concern GPUs, and the memory that they use.
std::vector<Fault> gpu_faults() {
  return {
      {"driver", Health::kFailed, "0000:3b:00.0", "580 or newer",
       [](MachineFacts& facts) { facts.gpus.present = {"0000:3b:00.0"}; }},
      {"driver", Health::kFailed, "7.5", "cpu",
       [](MachineFacts& facts) {
         facts.gpus.usable = {{.name = "Old", .compute_major = 7, .compute_minor = 5}};
       }},
      {"driver", Health::kWarning, "no virtual memory management", "train.micro_batch",
       [](MachineFacts& facts) {
         facts.gpus.usable = {{.name = "Virtual", .compute_major = 9, .maps_memory = false}};
       }},
      {"shared memory", Health::kWarning, "64.0 MiB free; NCCL may need 80.0 MiB", "--shm-size",
       [](MachineFacts& facts) {
         facts.gpus.usable = {{.name = "One", .compute_major = 9},
                              {.name = "Two", .compute_major = 9}};
         facts.shared_memory = 64 * kMiB;
       }},
      {"memlock", Health::kWarning, "64.0 KiB", "ulimit -l",
       [](MachineFacts& facts) { facts.machine.memlock_limit = 64 * kKiB; }},
      {"huge pages", Health::kWarning, "never", "echo madvise",
       [](MachineFacts& facts) { facts.huge_pages = "never"; }},
      {"huge pages", Health::kWarning, "has no transparent", "echo madvise",
       [](MachineFacts& facts) { facts.huge_pages.clear(); }},
      {"huge pages", Health::kWarning, "shmem_enabled = never", "echo advise",
       [](MachineFacts& facts) {
         facts.gpus.usable = {{.name = "One", .compute_major = 9},
                              {.name = "Two", .compute_major = 9}};
         facts.shared_memory = kGiB;
         facts.shared_huge_pages = "never";
       }},
      {"pinned memory", Health::kWarning, "WSL2: GPUs can use 512.0 MiB", "offload.pinned_memory",
       [](MachineFacts& facts) {
         facts.wsl2 = true;
         facts.pinnable = 512 * kMiB;
       }},
      {"pinned memory", Health::kWarning, "0 B", "offload.pinned_memory",
       [](MachineFacts& facts) { facts.pinnable = 0; }},
  };
}

std::vector<Fault> faults() {
  std::vector<Fault> all = gpu_faults();
  const std::vector<Fault> others = {
      {"memory", Health::kWarning, "16.0 GiB of 64.0 GiB", "--memory",
       [](MachineFacts& facts) { facts.machine.cgroup_limit = 16 * kGiB; }},
      {"memory", Health::kWarning, "32.0 GiB of 64.0 GiB", "nr_hugepages",
       [](MachineFacts& facts) { facts.reserved_huge_pages = 32 * kGiB; }},
      {"cores", Health::kWarning, "2 of 8 cores", "--cpus",
       [](MachineFacts& facts) { facts.core_quota = 2; }},
      {"cores", Health::kWarning, "3 of 8 cores", "taskset",
       [](MachineFacts& facts) { facts.cores_allowed = 3; }},
      {"simd", Health::kWarning, "no AVX2", "-cpu host",
       [](MachineFacts& facts) { facts.machine.simd = SimdLevel::kBaseline; }},
      {"numa", Health::kWarning, "2 nodes", "numactl",
       [](MachineFacts& facts) {
         facts.numa_nodes = facts.numa_nodes_of_cores = facts.numa_nodes_of_memory = 2;
       }},
      {"numa", Health::kWarning, "1 of 2 nodes", "offload.host_memory",
       [](MachineFacts& facts) { facts.numa_nodes = 2; }},
      {"clocks", Health::kWarning, "powersave", "cpupower",
       [](MachineFacts& facts) { facts.clocks.governor = "powersave"; }},
      {"clocks", Health::kWarning, "1.20 GHz of 4.00 GHz", "cpupower",
       [](MachineFacts& facts) { facts.clocks.limit_khz = 1200000; }},
      {"clocks", Health::kWarning, "17 times", "fans",
       [](MachineFacts& facts) { facts.clocks.throttled = 17; }},
      {"file system", Health::kFailed, "Permission denied", "let this user",
       [](MachineFacts& facts) { facts.directories[0].file_trouble = "Permission denied"; }},
      {"file system", Health::kWarning, "this is tmpfs", "df -T",
       [](MachineFacts& facts) { facts.directories[0].file_system = "tmpfs"; }},
      {"file system", Health::kWarning, "a network", "a drive of this machine",
       [](MachineFacts& facts) { facts.directories[0].file_system = "nfs"; }},
      {"file system", Health::kWarning, "no direct I/O", "ext4 or xfs",
       [](MachineFacts& facts) { facts.directories[0].direct = false; }},
      {"file system", Health::kWarning, "100.0 MiB free", "longshore plan",
       [](MachineFacts& facts) { facts.directories[0].free = 100 * kMiB; }},
      {"io_uring", Health::kWarning, "not permitted", "seccomp",
       [](MachineFacts& facts) { facts.directories[0].ring_trouble = "not permitted"; }},
      {"io_uring", Health::kWarning, "not permitted", "kernel.io_uring_disabled=0",
       [](MachineFacts& facts) {
         facts.directories[0].ring_trouble = "not permitted";
         facts.ring_disabled = 2;
       }},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

// Each fault alone is reported once, on its own line with advice.
TEST(Diagnosis, NamesEachFaultAndWhatToDo) {
  for (const Fault& fault : faults()) {
    MachineFacts facts = good_machine();
    fault.provoke(facts);
    int named = 0;
    for (const Diagnosis& one : diagnose(facts)) {
      if (one.health == Health::kOk) continue;
      ++named;
      EXPECT_EQ(one.check, fault.check) << one.found;
      EXPECT_EQ(one.health, fault.health) << one.found;
      EXPECT_NE(one.found.find(fault.found), std::string::npos) << one.found;
      EXPECT_NE(one.advice.find(fault.advice), std::string::npos) << one.advice;
    }
    EXPECT_EQ(named, 1) << fault.check << " " << fault.found;
    EXPECT_EQ(any_failed(diagnose(facts)), fault.health == Health::kFailed);
  }
}

// Settings that only look like faults are not reported.
TEST(Diagnosis, LetsPassWhatIsAllowed) {
  const std::vector<std::function<void(MachineFacts&)>> harmless = {
      [](MachineFacts& facts) {
        facts.machine.memlock_limit = 64 * kKiB;
        facts.may_lock_all = true;
      },
      [](MachineFacts& facts) { facts.clocks = {}; },
      [](MachineFacts& facts) {
        facts.clocks.driver = "intel_pstate";
        facts.clocks.governor = "powersave";
      },
      [](MachineFacts& facts) { facts.machine.cgroup_limit = 128 * kGiB; },
      [](MachineFacts& facts) { facts.core_quota = 8; },
      [](MachineFacts& facts) {
        facts.directories[0].purpose = "run.dir";
        facts.directories[0].file_system = "nfs";
        facts.directories[0].direct = false;
      },
  };
  for (const auto& change : harmless) {
    MachineFacts facts = good_machine();
    change(facts);
    for (const Diagnosis& one : diagnose(facts)) EXPECT_EQ(one.health, Health::kOk) << one.found;
  }
}

class KernelFiles : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
};

// The kernel's files, here of a machine with two nodes, are read below a given root.
TEST_F(KernelFiles, AreReadBelowTheRoot) {
  write("proc/meminfo",
        "MemTotal:       1000000 kB\nMemAvailable:    400000 kB\nHugePages_Total:      10\n"
        "Hugepagesize:       2048 kB\n");
  write("proc/self/status",
        "CapEff:\t0000000000004000\nCpus_allowed_list:\t0-1,3\nMems_allowed_list:\t0\n");
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "512000000\n");
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  write("proc/sys/kernel/io_uring_disabled", "2\n");
  write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [never] deny\n");
  write("proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2\n");
  write("sys/devices/system/cpu/online", "0-3\n");
  write("sys/devices/system/node/node0/cpulist", "0-1\n");
  write("sys/devices/system/node/node1/cpulist", "2-3\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "1200000\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3600000\n");
  write("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n");
  write("sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count", "9\n");
  write("sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count", "1\n");
  write("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n");
  write("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n");

  const MachineFacts facts = read_machine_facts(root_);
  EXPECT_EQ(facts.machine.ram_total, 1000000 * kKiB);
  EXPECT_EQ(facts.machine.cgroup_limit, 512000000);
  EXPECT_EQ(facts.core_quota, 2);
  EXPECT_TRUE(facts.may_lock_all);
  EXPECT_EQ(facts.reserved_huge_pages, 10 * 2 * kMiB);
  EXPECT_EQ(facts.huge_pages, "never");
  EXPECT_EQ(facts.shared_huge_pages, "never");
  EXPECT_TRUE(facts.wsl2);
  EXPECT_EQ(facts.ring_disabled, 2);
  EXPECT_EQ(facts.cores_online, 4);
  EXPECT_EQ(facts.cores_allowed, 3);
  EXPECT_EQ(facts.numa_nodes, 2);
  EXPECT_EQ(facts.numa_nodes_of_cores, 2);
  EXPECT_EQ(facts.numa_nodes_of_memory, 1);
  EXPECT_EQ(facts.clocks.governor, "powersave");
  EXPECT_EQ(facts.clocks.limit_khz, 1200000);
  EXPECT_EQ(facts.clocks.most_khz, 3600000);
  EXPECT_EQ(facts.clocks.throttled, 5) << "of the cores that are ours";
  EXPECT_EQ(facts.gpus.present, std::vector<std::string>{"0000:3b:00.0"});
}

// Missing files of the kernel give unknown facts and no exception.
TEST_F(KernelFiles, MayAllBeMissing) {
  const MachineFacts facts = read_machine_facts(root_);
  EXPECT_FALSE(facts.may_lock_all);
  EXPECT_EQ(facts.huge_pages, "");
  EXPECT_FALSE(facts.wsl2);
  EXPECT_EQ(facts.numa_nodes, 1);
  EXPECT_EQ(facts.clocks.governor, "");
  EXPECT_FALSE(diagnose(facts).empty());
}

// A directory is tried for writing, and nothing is left in it.
TEST(DirectoryTrial, TheDirectoryAndLeavesNothingThere) {
  const TemporaryDirectory directory;
  const DirectoryFacts facts = try_directory("run.dir", directory.path() + "/new/run");
  EXPECT_EQ(facts.path, directory.path());
  EXPECT_EQ(facts.file_trouble, "");
  EXPECT_GT(facts.free, 0);
  EXPECT_NE(facts.file_system, "");
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

// A directory that cannot be written is reported.
TEST(DirectoryTrial, WhatCannotBeWritten) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "no directory";
  const DirectoryFacts facts = try_directory("run.dir", directory.path() + "/file/run");
  EXPECT_NE(facts.file_trouble.find("Not a directory"), std::string::npos) << facts.file_trouble;
}

// The command prints a line for each check, or JSON; a directory that cannot be written fails it.
TEST(CheckMachine, PrintsLinesAndJson) {
  const TemporaryDirectory directory;
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"check", "machine",
                                          "--run.dir=" + directory.path() + "/run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    testing::internal::CaptureStdout();
    const int exit_code = run_command_line(arguments);
    return std::pair(exit_code, testing::internal::GetCapturedStdout());
  };
  const Json json = Json::parse(run({"--json"}).second);
  EXPECT_EQ(json["checks"].back()["check"], "io_uring");
  EXPECT_EQ(json["ok"].get<bool>(), json["failed"] == 0);
  const std::string text = run({}).second;
  EXPECT_NE(text.find("run.dir " + directory.path()), std::string::npos) << text;

  std::ofstream(directory.path() + "/file") << "no directory";
  const auto [exit_code, bad] = run({"--offload.nvme=[\"" + directory.path() + "/file/x\"]"});
  EXPECT_EQ(exit_code, 1);
  EXPECT_NE(bad.find("\nfail  file system   offload.nvme "), std::string::npos) << bad;
}

}  // namespace
}  // namespace longshore
