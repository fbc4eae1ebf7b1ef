// Commands say these things before a run starts: plans for all GPUs of another machine, and data
// that cannot be used. Goal: a mistake is named before anything that takes long.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class PlannedStart : public testing::Test {
 protected:
  PlannedStart() : directory_(scratch_directory("planned-start")) {
    fs::create_directories(directory_);
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", path("model")}).exit_code, 0);
    write("rows.jsonl", "{\"text\": \"a row of the rows\"}\n");
    write("run.toml", "[model]\npath = \"" + path("model") + "\"\n[run]\ndir = \"" + path("run") +
                          "\"\n[data]\ntrain = [\"" + path("rows.jsonl") +
                          "\"]\nmax_tokens = 48\ncache = \"" + path("cache") +
                          "\"\n[train]\nsteps = 3\n[precision]\ncompute = \"fp32\"\n");
  }
  ~PlannedStart() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }

  std::string directory_;
};

// Goal: a plan is of all GPUs of the machine that it names, and checks the memory that they share.
TEST_F(PlannedStart, PlansAreOfAllGpusOfAMachine) {
  const auto plan = [&](const Arguments& more) {
    return run_command(
        joined({"plan", path("model"), "--data.cache=" + path("cache"), "--json"}, more));
  };
  const auto ranks = [&](const Arguments& more) {
    const Ended ended = plan(more);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const Json found = Json::parse(ended.out).at("ranks");
    return std::pair(found.at("ranks").get<int>(), found.at("ranks_per_node").get<int>());
  };
  EXPECT_EQ(ranks({"--machine", "rtx-4090"}), std::pair(1, 1));
  EXPECT_EQ(ranks({"--machine", "2x-rtx-4090"}), std::pair(2, 2));
  EXPECT_EQ(ranks({"--machine", "RTX 4090", "--gpus", "4"}), std::pair(4, 4));
  EXPECT_EQ(ranks({"--machine", "2x-rtx-4090", "--ranks", "8"}), std::pair(8, 2));
  EXPECT_EQ(ranks({"--machine", "2x-rtx-4090", "--ranks", "1"}), std::pair(1, 1));
  EXPECT_EQ(ranks({"--ranks", "2"}), std::pair(2, 1)) << "two machines like this one";
  const Ended two = run_command({"plan", path("model"), "--data.cache=" + path("cache"),
                                 "--machine", "2x 4090", "--ram", "64GiB"});
  EXPECT_TRUE(two.out.starts_with("fits on 2 GPUs of one machine: each device ")) << two.out;
  for (const char* part :
       {" of 59.0 GiB, ", "32 cores for each rank, 64.0 GiB of memory, 2 x NVIDIA",
        "speeds: estimated from data sheets\n"}) {
    EXPECT_TRUE(has(two.out, part)) << part << " in:\n" << two.out;
  }
  const Ended small = run_command({"plan", path("model"), "--data.cache=" + path("cache"),
                                   "--machine", "2x 4090", "--ram", "5GiB"});
  EXPECT_EQ(small.exit_code, 3) << small.out;
  EXPECT_TRUE(has(small.err, "host memory: the plan needs ")) << small.err;
  EXPECT_TRUE(has(small.err, " for 2 ranks, the machine has 9")) << small.err;
  const Ended wrong = plan({"--machine", "4090", "--ranks-per-node", "2"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_TRUE(has(wrong.err, "the machine has 1 GPU, and each rank needs one")) << wrong.err;
  EXPECT_EQ(plan({"--machine", "4090", "--ram", "much"}).exit_code, 2);
}

// Goal: data that cannot be used is named before anything is measured or planned, by `plan` as a
// warning.
TEST_F(PlannedStart, TrainLooksAtTheDataFirst) {
  write("empty.jsonl", "");
  write("rows.csv", "a,b\n1,2\n");
  write("ids.jsonl", "{\"input_ids\": [1, 2, 99999999]}\n");
  const std::vector<std::pair<std::string, std::string>> cases = {{"no.jsonl", "no such file"},
                                                                  {"empty.jsonl", "is empty"},
                                                                  {"rows.csv", "rows.csv"},
                                                                  {"ids.jsonl", "99999999"}};
  for (const auto& [file, words] : cases) {
    SCOPED_TRACE(file);
    const Arguments keys = {"--run.dir=" + path("other"), "--data.train=" + path(file),
                            "--data.cache=" + path("fresh")};
    const Ended ended = run_command(joined({"train", path("run.toml")}, keys));
    EXPECT_EQ(ended.exit_code, 5) << ended.err;
    EXPECT_TRUE(has(ended.err, words)) << ended.err;
    EXPECT_FALSE(has(ended.err, "to measure memory") || has(ended.err, "fits: ")) << ended.err;
    const Ended plan = run_command(joined({"plan", path("run.toml")}, keys));
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    EXPECT_TRUE(has(plan.err, words) && has(plan.err, "the run would be refused")) << plan.err;
  }
}

}  // namespace
}  // namespace longshore
