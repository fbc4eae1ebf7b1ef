// Training with the state on drives: the bits of the host tier, and nothing lost by kill -9.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/fakes/blocked_calls.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

Arguments base(int steps, const std::string& golden = "llama-tied") {
  return joined(RunDriver::golden_arguments(golden),
                {"--train.steps=" + std::to_string(steps), "--train.max_grad_norm=0.9",
                 "--train.sequences_per_step=4"});
}

// offload.nvme with so many directories inside the run's.
Arguments on_drives(const RunDriver& run, int drives) {
  std::string list;
  for (int i = 0; i < drives; ++i) {
    list += (i == 0 ? "\"" : ", \"") + run.directory() + "/drive" + std::to_string(i) + "\"";
  }
  return {"--offload.optimizer=nvme", "--offload.nvme=[" + list + "]"};
}

void expect_same(const RunDriver& run, const RunDriver& reference, const std::string& what) {
  EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << what;
  EXPECT_EQ(run.steps("grad_norm"), reference.steps("grad_norm")) << what;
  EXPECT_TRUE(run.state() == reference.state()) << what;
}

struct Homes {
  int drives;
  std::string parameters;
  std::string inputs;  // kept, between forward and backward
};

void expect_bits_of_host(const std::string& format, const std::string& compute,
                         const std::vector<Homes>& variants) {
  const Arguments same =
      joined(base(30), {"--offload.state_format=" + format, "--precision.compute=" + compute});
  RunDriver host("host");
  ASSERT_EQ(host.train(same), 0);
  for (const Homes& homes : variants) {
    RunDriver run("drives");
    const std::string what = format + " " + compute + " " + std::to_string(homes.drives) +
                             " drives, parameters " + homes.parameters + ", inputs " + homes.inputs;
    ASSERT_EQ(run.train(joined(joined(same, on_drives(run, homes.drives)),
                               {"--offload.parameters=" + homes.parameters,
                                "--offload.activations=" + homes.inputs})),
              0)
        << what;
    expect_same(run, host, what);
    EXPECT_EQ(run.metrics("commit").size(), 30u);
  }
}

const std::vector<Homes> kHomes = {
    {1, "host", "device"}, {3, "nvme", "nvme"}, {3, "host", "host"}, {1, "nvme", "nvme"}};

// Thirty steps: every format in both compute types, one and three directories, parameters and
// inputs there or not, in a cover of their pairs.
TEST(NvmeTraining, GivesTheBitsOfTheHostTier) {
  size_t next = 0;
  for (const std::string format : {"fp32", "split", "split-bf16", "split-int8"}) {
    for (const std::string compute : {"fp32", "bf16"}) {
      expect_bits_of_host(format, compute, {kHomes[next++ % kHomes.size()]});
    }
    ++next;
  }
}

TEST(LongNvmeTraining, GivesTheBitsOfTheHostTierEverywhere) {
  for (const std::string format : {"fp32", "split", "split-bf16", "split-int8"}) {
    for (const std::string compute : {"fp32", "bf16"}) expect_bits_of_host(format, compute, kHomes);
  }
}

// Everything on the drives. `error`: what io_uring_setup gives, 0 where it works.
void expect_bits_of_ranks(const RunDriver& host, int ranks, int drives, int error) {
  RunDriver run("drive-ranks");
  const std::string what = std::to_string(ranks) + " ranks, " + std::to_string(drives) +
                           " drives, io_uring_setup " + std::to_string(error);
  const fakes::BlockedCalls blocked({SYS_io_uring_setup}, error);
  if (error != 0) {
    run.before_exec([&blocked] {
      if (!blocked.install()) ::_exit(99);
    });
  }
  const Arguments everything = {"--offload.parameters=nvme", "--offload.activations=nvme"};
  ASSERT_EQ(run.train_ranks(ranks, joined(joined(base(30), on_drives(run, drives)), everything)), 0)
      << what << "\n"
      << run.output();
  expect_same(run, host, what);
  const char* const kSaid = "threads with pread and pwrite serve";
  const std::string output = run.output();
  int said = 0;
  for (size_t at = output.find(kSaid); at != std::string::npos; at = output.find(kSaid, at + 1)) {
    ++said;
  }
  EXPECT_EQ(said, error == 0 ? 0 : ranks) << what << ": once by every rank\n" << output;
}

// Goal: where a container blocks io_uring the run says so once and gives the same bits.
TEST(NvmeTraining, GivesTheBitsOfTheHostTierOnSeveralRanks) {
  for (const int ranks : {1, 2, 4}) {
    RunDriver host("host-ranks");
    ASSERT_EQ(host.train_ranks(ranks, base(30)), 0) << host.output();
    for (const int drives : {1, 3}) {
      expect_bits_of_ranks(host, ranks, drives, 0);
      expect_bits_of_ranks(host, ranks, drives, drives == 1 ? EPERM : ENOSYS);
    }
  }
}

// Commit lines so far, without parsing what a run of many steps has written.
int64_t commits_in(const RunDriver& run) {
  std::ifstream file(run.directory() + "/metrics.jsonl");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string_view wanted = "\"kind\":\"commit\"";
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size()) {
    ++count;
  }
  return count;
}

// Kills a real process at random moments: what a commit line says is never lost.
void kill_and_restart(int kills) {
  const int steps = 10 * kills;  // one to three a life, and those that were under way
  RunDriver host("unbroken");
  ASSERT_EQ(host.train(base(steps)), 0);
  RunDriver run("killed");
  std::mt19937 random(static_cast<unsigned>(3 + GTEST_FLAG_GET(random_seed)));
  int killed = 0;
  int64_t acknowledged = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t process = run.start_ranks(1, joined(base(steps), on_drives(run, 1)));
    const int64_t target = commits_in(run) + 1 + random() % 3;
    int status = 0;
    bool ended = false;
    while (commits_in(run) < target && !ended) {
      ended = ::waitpid(process, &status, WNOHANG) != 0;
      std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 1500));
    }
    if (ended) break;
    ::kill(-process, SIGKILL);
    ::waitpid(process, nullptr, 0);
    ++killed;
    // Steps that were acknowledged before are still there: the file is cut at the restored one.
    const std::vector<Json> commits = run.metrics("commit");
    const int64_t newest = commits.empty() ? 0 : commits.back().at("step").get<int64_t>();
    EXPECT_GE(newest, acknowledged);
    acknowledged = newest;
  }
  EXPECT_EQ(killed, kills) << run.output();
  ASSERT_EQ(run.train(joined(base(steps), on_drives(run, 1))), 0);
  EXPECT_EQ(run.steps("loss"), host.steps("loss"));
  EXPECT_TRUE(run.state() == host.state());
}

TEST(NvmeTraining, SurvivesKills) {
  kill_and_restart(8);
}

TEST(LongNvmeTraining, SurvivesTwoHundredKills) {
  kill_and_restart(200);
}

// A run moves between tiers through its checkpoints.
TEST(NvmeTraining, MovesBetweenTiers) {
  RunDriver host("unmoved"), run("moved");
  ASSERT_EQ(host.train(base(12)), 0);
  ASSERT_EQ(run.train(base(4)), 0);
  ASSERT_EQ(run.train(joined(base(8), on_drives(run, 2))), 0);
  ASSERT_EQ(run.train(base(12)), 0);
  expect_same(run, host, "host, drives, host");
}

TEST(NvmeTraining, NeverDropsAcknowledgedStepsSilently) {
  RunDriver run("kept");
  const Arguments drives = on_drives(run, 1);
  ASSERT_EQ(run.train(joined(base(6), drives)), 0);
  // The files now hold step 6, and no checkpoint does.
  std::filesystem::remove_all(run.directory() + "/checkpoints");
  EXPECT_EQ(run.train(joined(joined(base(8), drives), {"--offload.state_format=fp32"})), 6);
  EXPECT_EQ(run.train(joined(base(8), drives)), 0) << "as it was";
  // Another run may not take the files over.
  RunDriver other("other");
  EXPECT_EQ(other.train(joined(base(2), drives)), 2);
}

TEST(NvmeTraining, NeedsDirectories) {
  RunDriver run("without");
  EXPECT_EQ(run.train(joined(base(2), {"--offload.optimizer=nvme"})), 2);
  EXPECT_EQ(run.train(joined(base(2), {"--offload.parameters=nvme"})), 2);
  EXPECT_EQ(run.train(joined(base(2), {"--offload.activations=nvme"})), 2);
}

}  // namespace
}  // namespace longshore
