// The space that a run needs in run.dir, at its boundaries: refused where not one checkpoint fits,
// warned of where checkpoint.keep and the export do not.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/run_space.h"

namespace longshore {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

RunSpace space_with(Bytes free) {
  return {.directory = "runs/a",
          .free = free,
          .checkpoint = 100 * kMiB,
          .exported = 30 * kMiB,
          .keep = 2,
          .one_more = true};
}

// Goal: a run starts where exactly one checkpoint fits, and not with a byte less.
TEST(RunSpaces, RefuseARunWithoutRoomForOneCheckpoint) {
  EXPECT_EQ(space_refusal(space_with(100 * kMiB)), "");
  const std::string refusal = space_refusal(space_with(100 * kMiB - 1));
  EXPECT_TRUE(has(refusal, "run.dir: a checkpoint takes ")) << refusal;
  EXPECT_TRUE(has(refusal, "the file system of runs/a has ")) << refusal;
  EXPECT_TRUE(has(refusal, "run.dir on a drive with more room")) << refusal;
  RunSpace shared = space_with(150 * kMiB);
  shared.drives = 50 * kMiB;
  EXPECT_EQ(space_refusal(shared), "");
  ++shared.drives;
  EXPECT_TRUE(has(space_refusal(shared), "and the files of offload.nvme take "));
  RunSpace done = space_with(0);
  done.done = true;
  EXPECT_EQ(space_refusal(done) + space_warning(done), "") << "nothing more is saved";
}

// Goal: the warning counts the kept checkpoints, the one being written or the export, the best one,
// and what the run holds already.
TEST(RunSpaces, WarnWhereWhatIsKeptDoesNotFit) {
  EXPECT_EQ(space_warning(space_with(300 * kMiB)), "");
  const std::string warning = space_warning(space_with(300 * kMiB - 1));
  EXPECT_TRUE(has(warning, "2 checkpoints of 100.0 MiB (checkpoint.keep)")) << warning;
  EXPECT_TRUE(has(warning, "a smaller checkpoint.keep")) << warning;
  RunSpace one = space_with(130 * kMiB);
  one.keep = 1;
  one.one_more = false;
  EXPECT_EQ(space_warning(one), "") << "the only checkpoint, then the export";
  --one.free;
  EXPECT_TRUE(has(space_warning(one), "the export of 30.0 MiB"));
  RunSpace going_on = space_with(100 * kMiB);
  going_on.held = 200 * kMiB;
  EXPECT_EQ(space_warning(going_on), "") << "two are there, and one is written";
  RunSpace best = space_with(400 * kMiB - 1);
  best.best = true;
  EXPECT_TRUE(has(space_warning(best), "eval.keep_best"));
  RunSpace cached = space_with(310 * kMiB);
  cached.cache = 10 * kMiB + 1;
  EXPECT_TRUE(has(space_warning(cached), "prepared data of about 10.0 MiB"));
}

// Goal: what a run holds is counted where it lies; leftovers of a killed process count as free.
TEST(RunSpaces, CountWhatTheRunHolds) {
  const TemporaryDirectory directory;
  const auto write = [&](const std::string& path, size_t bytes) {
    make_directories(directory.file(path.substr(0, path.rfind('/'))));
    std::ofstream(directory.file(path)) << std::string(bytes, 'x');
  };
  write("run/checkpoints/step-00000002/state", 5000);
  write("run/checkpoints/step-00000004.writing/state", 700);
  write("run/checkpoints/step-00000003.abandoned/state", 90000);
  RunConfig config;
  config.run.dir = directory.file("run");
  config.train.steps = 10;
  config.checkpoint.every_steps = 4;
  config.checkpoint.keep = 2;
  const ModelSpec model;
  const std::optional<RunSpace> space = read_run_space(config, model, 0);
  ASSERT_TRUE(space);
  EXPECT_EQ(space->held, 5000);
  EXPECT_EQ(space->keep, 2);
  EXPECT_TRUE(space->one_more) << "steps 4, 8 and 10 are saved";
  EXPECT_FALSE(space->done);
  config.train.steps = 4;
  EXPECT_EQ(read_run_space(config, model, 0)->keep, 1);
  EXPECT_FALSE(read_run_space(config, model, 0)->one_more);
}

}  // namespace
}  // namespace longshore
