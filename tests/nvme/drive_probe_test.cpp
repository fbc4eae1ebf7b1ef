// The probe moves the stated bytes and leaves no file behind. No speed is asserted.
#include "nvme/probe/drive_probe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

// The probe measures both directions and removes its file.
TEST(DriveProbe, MeasuresBothDirectionsAndRemovesItsFile) {
  const ScratchDirectory directory;
  for (const IoEngine engine : {IoEngine::kAuto, IoEngine::kThreads}) {
    {
      DriveProbe probe(directory.path(), kMiB, engine);
      for (const auto kind : {BlockOp::Kind::kRead, BlockOp::Kind::kWrite}) {
        const DriveSpeed speed = probe.measure(kind, {.chunk_bytes = kMiB, .depth = 4}, 0.01);
        EXPECT_GT(speed.gb_per_second, 0.0);
        EXPECT_GE(speed.core_percent_per_gb, 0.0);
      }
      EXPECT_FALSE(measure_fio(probe.path(), BlockOp::Kind::kRead, "no_such_engine", {}, 0.01));
    }
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
}

// The median is taken of each value.
TEST(DriveProbe, TakesTheMedianOfEachFigure) {
  const DriveSpeed speed = median_of({{3.0, 1.0}, {1.0, 2.0}, {2.0, 9.0}});
  EXPECT_EQ(speed.gb_per_second, 2.0);
  EXPECT_EQ(speed.core_percent_per_gb, 2.0);
}

// Goal: a drive is measured once, the result is found again, and no other file is left.
TEST(DriveTuning, IsMeasuredOnceAndKept) {
  const ScratchDirectory directory;
  const std::string drive = directory.file("drive");
  EXPECT_FALSE(read_drive_tuning(drive));
  const DriveTuning made = tune_drive(drive, IoEngine::kAuto, 0.5);
  const std::optional<DriveTuning> kept = read_drive_tuning(drive);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->settings.chunk_bytes, made.settings.chunk_bytes);
  EXPECT_EQ(kept->settings.depth, made.settings.depth);
  EXPECT_EQ(kept->gb_per_second, made.gb_per_second);
  EXPECT_GT(kept->gb_per_second, 0.0);
  const std::filesystem::directory_iterator left(drive);
  EXPECT_EQ(std::distance(begin(left), end(left)), 1);
  for (const char* nonsense :
       {"", "{}", R"({"chunk_bytes": 1000, "depth": 8, "gb_per_second": 1.0})",
        R"({"chunk_bytes": 1048576, "depth": 100000, "gb_per_second": 1.0})",
        R"({"chunk_bytes": 1048576, "depth": 8, "gb_per_second": 0.0})"}) {
    write_file_durably(drive + "/drive_tuning.json", nonsense);
    EXPECT_FALSE(read_drive_tuning(drive)) << nonsense;
  }
}

// Stripes are weighted by measured speed.
TEST(DriveTuning, StripesByMeasuredSpeed) {
  const auto weights = [](const std::vector<double>& speeds) {
    std::vector<DriveTuning> drives;
    for (const double speed : speeds) drives.push_back({{kMiB, 64}, speed});
    const TunedDrives tuned = combine(drives);
    const auto& all = tuned.geometry.weights;
    return std::vector<uint32_t>(all.begin(), all.begin() + static_cast<long>(speeds.size()));
  };
  EXPECT_EQ(weights({3.0}), (std::vector<uint32_t>{1}));
  EXPECT_EQ(weights({3.0, 3.2, 2.9}), (std::vector<uint32_t>{1, 1, 1}));
  EXPECT_EQ(weights({6.0, 3.0}), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(weights({3.0, 4.5, 3.0}), (std::vector<uint32_t>{2, 3, 2}));
  EXPECT_EQ(weights({1000.0, 1.0}), (std::vector<uint32_t>{16, 1})) << "bounded";
  const TunedDrives mixed =
      combine(std::vector<DriveTuning>{{{kMiB, 128}, 1.0}, {{4 * kMiB, 8}, 1.0}});
  EXPECT_EQ(mixed.geometry.chunk_bytes, 4 * kMiB);
  EXPECT_EQ(mixed.depth, 32) << "128 MiB in flight, as the drive that wants most";
}

}  // namespace
}  // namespace longshore
