// What is kept of a machine from one command to the next.
#include "trainer/setup/known_rates.h"

#include <gtest/gtest.h>

#include <fstream>

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
  described.rates.source = "measured by doctor";
  described.program = program;
  return described;
}

// Goal: rates of another build are used, and said to be of one.
TEST(KnownRates, SayWhichBuildMeasured) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  EXPECT_FALSE(known.find());
  known.keep(described(build_id()));
  EXPECT_EQ(known.find()->rates.source, "measured by doctor");
  known.keep(described("another"));
  EXPECT_EQ(known.find()->rates.source, "measured by doctor, by another build of the program");
}

TEST(KnownRates, OfAnotherFormatAreRefusedInWords) {
  const TemporaryDirectory directory;
  const KnownRates known(directory.path(), some_machine());
  known.keep(described(build_id()));
  std::ofstream(known.path()) << "version = 99\n[host]\nmemory = \"8GiB\"\n";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(known.find());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("longshore doctor --rates"), std::string::npos) << said;
  EXPECT_NE(said.find("version 99; this program reads version 1"), std::string::npos) << said;
}

// Goal: the first run corrects a plan in full; one odd run later moves it half of the way.
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

}  // namespace
}  // namespace longshore
