// The probe moves what it says and leaves nothing behind. No speeds are judged here.
#include "nvme/drive_probe.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "nvme/fio_reference.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

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

TEST(DriveProbe, TakesTheMedianOfEachFigure) {
  const DriveSpeed speed = median_of({{3.0, 1.0}, {1.0, 2.0}, {2.0, 9.0}});
  EXPECT_EQ(speed.gb_per_second, 2.0);
  EXPECT_EQ(speed.core_percent_per_gb, 2.0);
}

}  // namespace
}  // namespace longshore
