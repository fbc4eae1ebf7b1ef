// The committed steps on drives, as recorded in a run's directory.
#include "trainer/directory/drive_record.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/trainer/temporary_directory.h"
#include "trainer/directory/drive_record.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

class AcknowledgedSteps : public testing::Test {
 protected:
  void write_lines(const std::string& lines) const {
    std::ofstream(directory_.file("metrics.jsonl")) << lines;
  }
  void note_committed_step(int64_t step) const {
    const RunDirectory run = RunDirectory::open(directory_.path());
    RunStatus status;
    status.step = Step(step);
    status.committed_step = Step(step);
    run.note_status(status);
  }

  const TemporaryDirectory directory_;
};

// Goal: the newest record of a committed step counts, in whichever file and order it is.
TEST_F(AcknowledgedSteps, AreTheNewestOfAllWitnesses) {
  EXPECT_FALSE(read_committed_steps(directory_.path()).any);
  write_lines(
      "{\"kind\": \"commit\", \"step\": 7}\n{\"kind\": \"step\", \"step\": 9}\n"
      "{\"kind\": \"commit\", \"step\": 6}\n");
  EXPECT_EQ(read_committed_steps(directory_.path()).step, 7);
  note_committed_step(5);
  const CommittedSteps older = read_committed_steps(directory_.path());
  EXPECT_EQ(older.step, 7);
  EXPECT_NE(older.source.find("metrics.jsonl"), std::string::npos) << older.source;
  note_committed_step(8);
  const CommittedSteps newer = read_committed_steps(directory_.path());
  EXPECT_EQ(newer.step, 8);
  EXPECT_NE(newer.source.find("run.json"), std::string::npos) << newer.source;
}

// Goal: if only the key records that something was committed, its step is unknown.
TEST_F(AcknowledgedSteps, AreKnownWithoutTheirNumber) {
  write_lines("{\"kind\": \"commit\", \"step\": 0}\n");
  EXPECT_FALSE(read_committed_steps(directory_.path()).any) << "step 0 is what every start has";
  write_state_key(directory_.path(), new_key(), true);
  EXPECT_TRUE(read_committed_steps(directory_.path()).any);
  EXPECT_LT(read_committed_steps(directory_.path()).step, 0);
}

}  // namespace
}  // namespace longshore
