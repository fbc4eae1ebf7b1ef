// The measured rates of a machine that commands share.
#include "trainer/setup/known_rates.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

Machine some_machine() {
  Machine machine;
  machine.cpu_model = "Some CPU";
  machine.ram_total = machine.ram_available = 8 * kGiB;
  return machine;
}

DescribedMachine described(const std::string& program) {
  DescribedMachine described;
  described.name = "Some CPU";
  described.machine = some_machine();
  described.rates.source = "measured by longshore";
  described.program = program;
  return described;
}

// Goal: rates of another build are used, and that build is named.
TEST(KnownRates, SayWhichBuildMeasured) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  EXPECT_FALSE(known.find());
  known.keep(described(build_id()));
  EXPECT_EQ(known.find()->rates.source, "measured by longshore");
  known.keep(described("another"));
  EXPECT_EQ(known.find()->rates.source, "measured by longshore, by another build of the program");
}

// Rates in another format are refused with a reason.
TEST(KnownRates, OfAnotherFormatAreRefusedInWords) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  known.keep(described(build_id()));
  std::ofstream(known.path()) << "version = 99\n[host]\nmemory = \"8GiB\"\n";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(known.find());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("longshore check machine --rates"), std::string::npos) << said;
  EXPECT_NE(said.find("version 99; this program reads version 1"), std::string::npos) << said;
}

// Goal: corrections of a plan belong to its rates, and measuring again drops them.
TEST(KnownRates, AreTheSameUntilTheyAreMeasuredAgain) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  EXPECT_EQ(known.mark(), "");
  DescribedMachine machine = described(build_id());
  machine.rates.copy = 1e9;
  known.keep(machine);
  const std::string mark = known.mark();
  EXPECT_NE(mark, "");
  EXPECT_EQ(known.mark(), mark);
  machine.rates.copy = 2e9;
  known.keep(machine);
  EXPECT_NE(known.mark(), mark);
}

// Goal: the first run corrects a plan in full; a single odd run later moves it half of the way.
TEST(KnownRates, FactorsAreSmoothed) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  LaneFactors factors = kNoCorrection;
  factors[0] = 4.0;
  known.keep_factors("a run", factors);
  EXPECT_EQ(known.find_factors("a run")[0], 4.0);
  factors[0] = 1.0;
  known.keep_factors("a run", factors);
  EXPECT_DOUBLE_EQ(known.find_factors("a run")[0], 2.0);
  EXPECT_EQ(known.find_factors("another run"), kNoCorrection);
}

// Returns the path of the only stored file of a unit.
std::string unit_file(const TemporaryDirectory& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory.file("machines"))) {
    if (entry.path().filename().string().find("-unit-") != std::string::npos) return entry.path();
  }
  return "";
}

// Times of units are kept with their micro-batches.
TEST(KnownRates, UnitsAreKeptWithTheirMicroBatches) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  EXPECT_TRUE(known.find_unit("a unit").empty());
  const std::vector<UnitPoint> points = {{64, {0.5, 1.5}}, {256, {0.25, 0.75}}};
  known.keep_unit("a unit", points);
  EXPECT_EQ(known.find_unit("a unit"), points);
  EXPECT_TRUE(known.find_unit("another unit").empty());
  const Json kept = Json::parse(read_input(unit_file(directory), kMiB));
  EXPECT_EQ(kept.at("positions"), Json({64, 256}));
  EXPECT_EQ(kept.at("seconds"), Json({0.5, 1.5, 0.25, 0.75}));
}

// Goal: files of older programs with one size, not recorded, are still read.
TEST(KnownRates, UnitsOfOnePointAreRead) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  known.keep_unit("a unit", {{64, {0.5, 1.5}}});
  std::ofstream(unit_file(directory)) << R"({"version":1,"of":"a unit","seconds":[0.25,0.75]})";
  const std::vector<UnitPoint> points = known.find_unit("a unit");
  EXPECT_EQ(points, (std::vector<UnitPoint>{{0, {0.25, 0.75}}}));
  EXPECT_EQ(unit_seconds(points, 1000), (UnitSeconds{0.25, 0.75}));
}

// Goal: files with impossible values are ignored.
TEST(KnownRates, UnitsWithBadValuesAreNotThere) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  known.keep_unit("a unit", {{64, {0.5, 1.5}}});
  const std::string path = unit_file(directory);
  for (const char* bad : {
           R"("positions":[256,64],"seconds":[1,2,3,4])",
           R"("positions":[64,64],"seconds":[1,2,3,4])",
           R"("positions":[0,64],"seconds":[1,2,3,4])",
           R"("positions":[-64],"seconds":[1,2])",
           R"("positions":[64,256],"seconds":[1,2])",
           R"("positions":[64],"seconds":[1,-2])",
           R"("positions":["64"],"seconds":[1,2])",
           R"("positions":64,"seconds":[1,2])",
           R"("positions":[0,64,256],"seconds":[1,2,1,2,1,2])",
           R"("seconds":[1,2,3,4])",
           R"("seconds":[])",
           R"("positions":[64,256])",
       }) {
    std::ofstream(path) << R"({"version":1,"of":"a unit",)" << bad << "}";
    EXPECT_TRUE(known.find_unit("a unit").empty()) << bad;
  }
}

}  // namespace
}  // namespace longshore
