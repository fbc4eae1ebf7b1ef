// Training with the state on drives: the host tier's bits, and no loss after SIGKILL.
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

// Returns the keys for `drives` directories of offload.nvme inside the run's.
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

struct Tiers {
  int drives;
  std::string parameters;
  std::string inputs;  // tier of activation checkpoints
  int versions = 2;
};

void expect_bits_of_host(const std::string& format, const std::string& compute,
                         const std::vector<Tiers>& variants) {
  const Arguments same =
      joined(base(30), {"--offload.state_format=" + format, "--precision.compute=" + compute});
  RunDriver host("host");
  ASSERT_EQ(host.train(same), 0);
  for (const Tiers& tiers : variants) {
    RunDriver run("drives");
    const std::string what = format + " " + compute + " " + std::to_string(tiers.drives) +
                             " drives, parameters " + tiers.parameters + ", inputs " +
                             tiers.inputs + ", versions " + std::to_string(tiers.versions);
    ASSERT_EQ(run.train(joined(joined(same, on_drives(run, tiers.drives)),
                               {"--offload.parameters=" + tiers.parameters,
                                "--offload.activations=" + tiers.inputs,
                                "--offload.nvme_versions=" + std::to_string(tiers.versions)})),
              0)
        << what;
    expect_same(run, host, what);
    EXPECT_EQ(run.metrics("commit").size(), tiers.versions == 2 ? 30u : 0u) << what;
  }
}

const std::vector<Tiers> kHomes = {{1, "host", "device", 2},
                                   {3, "nvme", "nvme", 2},
                                   {3, "host", "host", 1},
                                   {1, "nvme", "nvme", 1}};

// Thirty steps give the host tier's bits: every format in both compute types, one and three
// directories, parameters and inputs on drives or not, one and two versions, in a pairwise cover.
TEST(NvmeTraining, GivesTheBitsOfTheHostTier) {
  size_t next = 0;
  for (const std::string format : {"fp32", "split", "split-bf16", "split-int8"}) {
    for (const std::string compute : {"fp32", "bf16"}) {
      expect_bits_of_host(format, compute, {kHomes[next++ % kHomes.size()]});
    }
    ++next;
  }
}

// The host tier's bits hold for all combinations.
TEST(LongNvmeTraining, GivesTheBitsOfTheHostTierEverywhere) {
  for (const std::string format : {"fp32", "split", "split-bf16", "split-int8"}) {
    for (const std::string compute : {"fp32", "bf16"}) expect_bits_of_host(format, compute, kHomes);
  }
}

// Updates in backward, with two host gradient slots, give the host tier's bits on two ranks.
TEST(NvmeTraining, UpdatesInBackwardGiveTheBitsOfTheHostTierOnTwoRanks) {
  const Arguments same = joined(base(10), {"--train.max_grad_norm=0"});
  RunDriver host("host-forward"), run("drive-backward");
  ASSERT_EQ(host.train_ranks(2, same), 0) << host.output();
  const Arguments backward = joined(same, {"--optimizer.overlap=backward"});
  ASSERT_EQ(run.train_ranks(2, joined(backward, on_drives(run, 2))), 0) << run.output();
  EXPECT_EQ(run.plan(2)["host"]["gradient_ring"], 2);
  expect_same(run, host, "two ranks");
}

// Compares runs with everything on drives; `error` is the errno of io_uring_setup, or 0.
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
  const char* const kSaid = "threads with pread and pwrite are used";
  const std::string output = run.output();
  int said = 0;
  for (size_t at = output.find(kSaid); at != std::string::npos; at = output.find(kSaid, at + 1)) {
    ++said;
  }
  EXPECT_EQ(said, error == 0 ? 0 : ranks) << what << ": once by every rank\n" << output;
}

// Runs ranks over one drive and three, with io_uring and without. With `half`, two of the four.
void expect_bits_on_ranks(bool half) {
  for (const int ranks : {1, 2, 4}) {
    RunDriver host("host-ranks");
    ASSERT_EQ(host.train_ranks(ranks, base(30)), 0) << host.output();
    for (const int drives : {1, 3}) {
      const bool blocked = (drives == 3) != (ranks == 2);
      if (!half || !blocked) expect_bits_of_ranks(host, ranks, drives, 0);
      if (!half || blocked) expect_bits_of_ranks(host, ranks, drives, drives == 1 ? EPERM : ENOSYS);
    }
  }
}

// Goal: if a container blocks io_uring, the run prints it once and gives the same bits. Each two of
// ranks, drives and the blocked call meet.
TEST(NvmeTraining, GivesTheBitsOfTheHostTierOnSeveralRanks) {
  expect_bits_on_ranks(true);
}

// Every number of ranks and drives runs with io_uring and without.
TEST(LongNvmeTraining, GivesTheBitsOfTheHostTierOnSeveralRanks) {
  expect_bits_on_ranks(false);
}

// Counts the lines of a kind without parsing the record of many steps.
size_t lines_of(const RunDriver& run, const std::string& kind) {
  std::ifstream file(run.directory() + "/metrics.jsonl");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string wanted = "\"kind\":\"" + kind + "\"";
  size_t count = 0;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size()) {
    ++count;
  }
  return count;
}

// Kills a real process at random moments and checks that no step with a commit line is lost.
void kill_and_restart(int kills, const std::string& golden, const Arguments& killed_way) {
  const int steps = 10 * kills;  // one to three a life, and those in flight
  RunDriver host("unbroken");
  ASSERT_EQ(host.train(base(steps, golden)), 0);
  RunDriver run("killed");
  const Arguments arguments = joined(joined(base(steps, golden), on_drives(run, 1)), killed_way);
  std::mt19937 random(static_cast<unsigned>(3 + GTEST_FLAG_GET(random_seed)));
  int killed = 0;
  int64_t acknowledged = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t process = run.start_ranks(1, arguments);
    const size_t target = lines_of(run, "commit") + 1 + random() % 3;
    int status = 0;
    bool ended = false;
    while (lines_of(run, "commit") < target && !ended) {
      ended = ::waitpid(process, &status, WNOHANG) != 0;
      std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 1500));
    }
    if (ended) break;
    ::kill(-process, SIGKILL);
    ::waitpid(process, nullptr, 0);
    ++killed;
    // Steps acknowledged before are still there: the file is cut at the restored step.
    const std::vector<Json> commits = run.metrics("commit");
    const int64_t newest = commits.empty() ? 0 : commits.back().at("step").get<int64_t>();
    EXPECT_GE(newest, acknowledged);
    acknowledged = newest;
  }
  EXPECT_EQ(killed, kills) << run.output();
  ASSERT_EQ(run.train(arguments), 0);
  EXPECT_EQ(run.steps("loss"), host.steps("loss"));
  EXPECT_TRUE(run.state() == host.state());
}

// Eight kills lose no acknowledged step.
TEST(NvmeTraining, SurvivesKills) {
  kill_and_restart(8, "llama-tied", {});
}

// Two hundred kills lose no acknowledged step.
TEST(LongNvmeTraining, SurvivesTwoHundredKills) {
  kill_and_restart(200, "llama-tied", {});
}

// Groups of experts with everything on drives must give the bits of whole blocks on the host.
const Arguments kExpertsOnDrives = {
    "--fsdp.units={ groups = [[\"block.0.experts.0\"], [\"block.2.experts.1\"]] }",
    "--offload.parameters=nvme", "--offload.activations=nvme"};

// Four kills of a run with experts lose no acknowledged step.
TEST(NvmeTraining, ExpertsSurviveKills) {
  kill_and_restart(4, "qwen3_moe", kExpertsOnDrives);
}

// Fifty kills of a run with experts lose no acknowledged step.
TEST(LongNvmeTraining, ExpertsSurviveFiftyKills) {
  kill_and_restart(50, "qwen3_moe", kExpertsOnDrives);
}

// ---- One version on the drives ----

// FileBytes: the state files of one rank on one drive, and their planned bytes.
struct FileBytes {
  int64_t on_disk;
  int64_t planned;
  int64_t checkpoint;  // planned
};

FileBytes state_file_bytes(const RunDriver& run) {
  const Json nvme = run.plan(1).at("nvme");
  return {
      static_cast<int64_t>(std::filesystem::file_size(run.directory() + "/drive0/rank-0000.state")),
      nvme.at("file_bytes").at(0).get<int64_t>(), nvme.at("checkpoint_bytes").get<int64_t>()};
}

const Arguments kOneVersion = {"--offload.nvme_versions=1"};

// One version takes half the space, as planned.
TEST(NvmeOneVersionTraining, TakesHalfTheSpaceAsPlanned) {
  RunDriver two("two-versions"), one("one-version");
  ASSERT_EQ(two.train(joined(base(2), on_drives(two, 1))), 0);
  ASSERT_EQ(one.train(joined(joined(base(2), on_drives(one, 1)), kOneVersion)), 0);
  const FileBytes twice = state_file_bytes(two), once = state_file_bytes(one);
  EXPECT_EQ(twice.on_disk, twice.planned);
  EXPECT_EQ(once.on_disk, once.planned);
  // Two versions need manifests and two blocks of checksums in addition.
  constexpr int64_t kManifests = 32 << 10, kTables = 2 * 4096;
  EXPECT_EQ(2 * (once.on_disk - kManifests), twice.on_disk - kManifests - kTables);
  const auto saved = one.metrics("checkpoint").back().at("bytes").get<int64_t>();
  EXPECT_GT(saved, once.checkpoint);
  EXPECT_LT(saved, once.checkpoint + (64 << 10)) << "headers";
}

// Starts the run, waits for `lines` more lines of the kind and ends it with the signal.
int end_after(const RunDriver& run, const Arguments& arguments, const std::string& kind,
              size_t lines, int signal) {
  const pid_t process = run.start_ranks(1, arguments);
  int status = 0;
  bool ended = false;
  while (lines_of(run, kind) < lines && !ended) {
    ended = ::waitpid(process, &status, WNOHANG) != 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (ended) return -1;
  ::kill(signal == SIGKILL ? -process : process, signal);
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Goal: a kill loses only the steps after the newest checkpoint, a stop loses nothing, and the run
// ends with the bits of an uninterrupted one.
TEST(NvmeOneVersionTraining, GoesOnFromItsCheckpoints) {
  const Arguments same = joined(base(80), {"--checkpoint.every_steps=10"});
  RunDriver host("one-unbroken");
  ASSERT_EQ(host.train(same), 0);
  RunDriver run("one-killed");
  const Arguments arguments =
      joined(joined(same, on_drives(run, 2)), {"--offload.nvme_versions=1"});
  ASSERT_EQ(end_after(run, arguments, "checkpoint", 1, SIGKILL), 128 + SIGKILL) << run.output();
  EXPECT_NE(run.output().find("a kill costs up to 10 steps"), std::string::npos) << run.output();
  const size_t steps = run.metrics("step").size();
  EXPECT_GE(steps, 10u);
  ASSERT_EQ(end_after(run, arguments, "checkpoint", run.metrics("checkpoint").size() + 1, SIGKILL),
            128 + SIGKILL);
  EXPECT_NE(run.output().find("resumed from"), std::string::npos) << run.output();
  ASSERT_EQ(end_after(run, arguments, "step", run.metrics("step").size() + 3, SIGTERM),
            128 + SIGTERM);
  EXPECT_EQ(run.metrics("checkpoint").back().at("step"), run.metrics("step").back().at("step"))
      << "a stop saves";
  ASSERT_EQ(run.train_ranks(1, arguments), 0) << run.output();
  EXPECT_EQ(run.metrics("commit").size(), 0u);
  expect_same(run, host, "killed and stopped");
}

// A run switches between one and two versions only if no acknowledged step is lost.
TEST(NvmeOneVersionTraining, SwitchesOnlyWhereNothingAcknowledgedIsLost) {
  RunDriver host("switched-host"), run("switched");
  ASSERT_EQ(host.train(base(12)), 0);
  const Arguments drives = on_drives(run, 2);
  ASSERT_EQ(run.train(joined(base(3), drives)), 0);
  // The run switches to one version, to two and back; each end saved a checkpoint.
  ASSERT_EQ(run.train(joined(joined(base(5), drives), kOneVersion)), 0);
  ASSERT_EQ(run.train(joined(base(8), drives)), 0);
  EXPECT_EQ(run.metrics("commit").back().at("step"), 8);
  // The drives hold step 8 and no checkpoint does, or only a damaged one.
  const std::string saved = run.directory() + "/checkpoints/step-00000008";
  std::filesystem::rename(saved, run.directory() + "/aside");
  EXPECT_EQ(run.train(joined(joined(base(12), drives), kOneVersion)), 6);
  std::filesystem::copy(run.directory() + "/aside", saved);
  for (const auto& entry : std::filesystem::directory_iterator(saved)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int last = file.peek();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
  }
  EXPECT_EQ(run.train(joined(joined(base(12), drives), kOneVersion)), 6);
  ASSERT_EQ(run.train(joined(base(9), drives)), 0) << "as it was";
  EXPECT_EQ(run.metrics("commit").back().at("step"), 9);
  ASSERT_EQ(run.train(joined(joined(base(12), drives), kOneVersion)), 0);
  expect_same(run, host, "two, one, two, two, one");
  // Another run cannot take the files over in either mode.
  RunDriver other("switched-other");
  EXPECT_EQ(other.train(joined(base(2), drives)), 2);
  EXPECT_EQ(other.train(joined(joined(base(2), drives), kOneVersion)), 2);
}

// Goal: every directory is searched for state, and none is emptied because another one is empty.
TEST(NvmeTraining, LooksForStateInEveryDirectory) {
  RunDriver run("first"), other("second");
  const std::string shared = run.directory() + "/drive0";
  ASSERT_EQ(run.train(joined(base(2), on_drives(run, 1))), 0);
  EXPECT_EQ(other.train(joined(
                base(2), {"--offload.optimizer=nvme", "--offload.nvme=[\"" + other.directory() +
                                                          "/new\", \"" + shared + "\"]"})),
            2);
  EXPECT_TRUE(std::filesystem::exists(shared + "/rank-0000.state"));
}

// A run moves between tiers through its checkpoints.
TEST(NvmeTraining, MovesBetweenTiers) {
  RunDriver host("unmoved"), run("moved");
  ASSERT_EQ(host.train(base(12)), 0);
  ASSERT_EQ(run.train(base(4)), 0);
  ASSERT_EQ(run.train(joined(base(8), on_drives(run, 2))), 0);
  ASSERT_EQ(run.train(base(10)), 0);
  // The drives still hold step 8, which is no longer needed.
  ASSERT_EQ(run.train(joined(base(12), on_drives(run, 2))), 0);
  EXPECT_FALSE(std::filesystem::exists(run.directory() + "/checkpoints/step-00000010.abandoned"));
  expect_same(run, host, "host, drives, host, drives");
}

// Acknowledged steps are never dropped silently.
TEST(NvmeTraining, NeverDropsAcknowledgedStepsSilently) {
  RunDriver run("kept");
  const Arguments drives = on_drives(run, 1);
  ASSERT_EQ(run.train(joined(base(6), drives)), 0);
  // The files hold step 6, and no checkpoint does.
  std::filesystem::remove_all(run.directory() + "/checkpoints");
  EXPECT_EQ(run.train(joined(joined(base(8), drives), {"--offload.state_format=fp32"})), 6);
  EXPECT_EQ(run.train(joined(base(8), drives)), 0) << "as it was";
  // Another run cannot take the files over.
  RunDriver other("other");
  EXPECT_EQ(other.train(joined(base(2), drives)), 2);
}

// State or parameters on drives need directories.
TEST(NvmeTraining, NeedsDirectories) {
  RunDriver run("without");
  EXPECT_EQ(run.train(joined(base(2), {"--offload.optimizer=nvme"})), 2);
  EXPECT_EQ(run.train(joined(base(2), {"--offload.parameters=nvme"})), 2);
  EXPECT_EQ(run.train(joined(base(2), {"--offload.activations=nvme"})), 2);
}

}  // namespace
}  // namespace longshore
