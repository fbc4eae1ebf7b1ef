// Several ranks with their state on drives. Goal: they resume at any number of ranks like ranks of
// the host tier, and files that do not belong together lose nothing acknowledged.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

Arguments until(int steps) {
  return joined(RunDriver::golden_arguments("llama-tied"),
                {"--train.steps=" + std::to_string(steps), "--train.max_grad_norm=0.9",
                 "--train.sequences_per_step=4"});
}

std::string drive_of(const RunDriver& run, int drive) {
  return run.directory() + "/drive" + std::to_string(drive);
}

Arguments on_drives(const RunDriver& run, int steps) {
  return joined(until(steps),
                {"--offload.optimizer=nvme", "--offload.parameters=nvme",
                 "--offload.nvme=[\"" + drive_of(run, 0) + "\", \"" + drive_of(run, 1) + "\"]"});
}

std::string state_of(const RunDriver& run, int drive, int rank) {
  return drive_of(run, drive) + "/rank-000" + std::to_string(rank) + ".state";
}

// Runs resume at any number of ranks, through new state files, with the host tier's bits.
TEST(NvmeRanks, GoOnAtAnyNumberWithTheBitsOfTheHostTier) {
  const RunDriver host("ranks-host"), drives("ranks-drives");
  int steps = 0;
  for (const int ranks : {2, 1, 3}) {
    steps += 3;
    ASSERT_EQ(host.train_ranks(ranks, until(steps)), 0) << host.output();
    ASSERT_EQ(drives.train_ranks(ranks, on_drives(drives, steps)), 0) << drives.output();
    EXPECT_EQ(drives.metrics("commit").back().at("step"), steps);
  }
  EXPECT_EQ(drives.steps("loss"), host.steps("loss"));
  EXPECT_TRUE(drives.state() == host.state());
}

// The drives of two ranks hold step 6, and no checkpoint does. A start with another number of
// ranks, with swapped files or with files of three steps ago is refused; with the files restored
// the run resumes.
TEST(NvmeRanks, DropNothingWhereTheirFilesDoNotFit) {
  const RunDriver run("ranks-alone"), host("alone-host");
  const std::string aside = run.directory() + "/aside", older = run.directory() + "/older";
  ASSERT_EQ(run.train_ranks(2, on_drives(run, 3)), 0) << run.output();
  fs::copy(state_of(run, 0, 1), older);
  ASSERT_EQ(run.train_ranks(2, on_drives(run, 6)), 0) << run.output();
  fs::remove_all(run.directory() + "/checkpoints");
  const auto expect_refused = [&run](int ranks, const char* what) {
    EXPECT_EQ(run.train_ranks(ranks, on_drives(run, 8)), 6) << what << "\n" << run.output();
    EXPECT_EQ(run.steps("loss").size(), 6u) << "the record stays";
  };
  expect_refused(1, "one rank");
  expect_refused(3, "three ranks");
  const auto swap_ranks = [&] {
    fs::rename(state_of(run, 0, 0), aside);
    fs::rename(state_of(run, 0, 1), state_of(run, 0, 0));
    fs::rename(aside, state_of(run, 0, 1));
  };
  swap_ranks();
  expect_refused(2, "each other's files");
  swap_ranks();
  fs::rename(state_of(run, 0, 1), aside);
  fs::rename(older, state_of(run, 0, 1));
  expect_refused(2, "a file of step 3");
  fs::rename(aside, state_of(run, 0, 1));
  ASSERT_EQ(run.train_ranks(2, on_drives(run, 8)), 0) << run.output();
  EXPECT_NE(run.output().find("after step 6"), std::string::npos) << run.output();
  ASSERT_EQ(host.train_ranks(2, until(8)), 0) << host.output();
  EXPECT_EQ(run.steps("loss"), host.steps("loss"));
  EXPECT_TRUE(run.state() == host.state());
}

}  // namespace
}  // namespace longshore
