// Runs over files that are mixed by probability (data.mix), through the command line: a resumed run
// is the unbroken one, and another mix is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

class MixedFilesRun : public testing::Test {
 protected:
  MixedFilesRun() : directory_(scratch_directory("mixed-files")) {
    fs::create_directories(directory_);
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", path("model")}).exit_code, 0);
    write_rows("small.jsonl", 4, "a small row, number ");
    write_rows("large.jsonl", 12, "other words of a larger file ");
    std::ofstream(path("run.toml"))
        << "[model]\npath = \"" << path("model") << "\"\n[data]\ntrain = [\"" << path("small.jsonl")
        << "\", \"" << path("large.jsonl") << "\"]\nmix = \"restart\"\nmax_tokens = 48\n"
        << "packing = false\ncache = \"" << path("cache") << "\"\n"
        << "[train]\nsequences_per_step = 4\n[schedule]\nname = \"constant\"\n"
        << "[checkpoint]\nevery_steps = 1\nexport = \"never\"\n[precision]\ncompute = \"fp32\"\n"
        << "[device]\nkind = \"cpu\"\nthreads = 1\n[offload]\nthreads = 1\n";
  }
  ~MixedFilesRun() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  Ended train(const std::string& run, const Arguments& more) const {
    return run_command(joined({"train", path("run.toml"), "--run.dir=" + path(run)}, more));
  }
  std::vector<std::string> losses(const std::string& run) const {
    std::vector<std::string> found;
    std::ifstream file(path(run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const Json object = Json::parse(line);
      if (object.at("kind") == "step") found.push_back(object.at("loss").dump());
    }
    return found;
  }
  static bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

 private:
  void write_rows(const std::string& name, int rows, const std::string& text) const {
    std::ofstream file(path(name));
    for (int row = 0; row < rows; ++row) {
      file << "{\"text\": \"" << text << row << "\"}\n";
    }
  }

  std::string directory_;
};

// Goal: a run says what an epoch has, and has its steps.
TEST_F(MixedFilesRun, SaysWhatAnEpochHas) {
  const Ended ended = train("run", {"--train.epochs=1"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "data.mix = \"restart\": an epoch has 24 rows: 12 of ")) << ended.err;
  EXPECT_EQ(losses("run").size(), 6u);
}

// Goal: a run that stops and goes on reads the rows of an unbroken one, and a run does not go on
// with other shares or another rule.
TEST_F(MixedFilesRun, GoesOnWithTheSameMixAlone) {
  ASSERT_EQ(train("unbroken", {"--train.steps=5"}).exit_code, 0);
  ASSERT_EQ(train("broken", {"--train.steps=2"}).exit_code, 0);
  for (const Arguments& other :
       {Arguments{"--data.probabilities=[0.8, 0.2]"}, Arguments{"--data.mix=exhaust"},
        Arguments{"--data.mix=concat"}, Arguments{"--data.shuffle=false"}}) {
    const Ended refused = train("broken", joined({"--train.steps=5"}, other));
    EXPECT_EQ(refused.exit_code, 6) << other[0] << refused.err;
    EXPECT_TRUE(says(refused.err, "the training data, its tokens or run.seed changed"))
        << refused.err;
  }
  const Ended ended = train("broken", {"--train.steps=5"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(losses("broken"), losses("unbroken"));
  EXPECT_EQ(losses("broken").size(), 5u);
}

// Goal: shares that would leave a file out of the run are refused with what to do.
TEST_F(MixedFilesRun, RefusesSharesThatLeaveAFileOut) {
  const Ended ended = train(
      "run", {"--train.steps=1", "--data.mix=exhaust", "--data.probabilities=[0.999, 0.001]"});
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_TRUE(says(ended.err, "an epoch has 4 rows, of which none would be of ")) << ended.err;
}

}  // namespace
}  // namespace longshore
