// A path that is no run file is answered with what to give instead.
#include "config/run_arguments.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/run_config.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Goal: a model, data, another trainer's file and a key without dashes get the next step, and the
// reason stands alone, without the parser's; a run file and the directory of a run are read.
TEST(RunFilePath, OtherThingsAreNamedWithTheNextStep) {
  const std::string root = testing::TempDir() + "run_file_path_test";
  fs::remove_all(root);
  fs::create_directories(root + "/model");
  fs::create_directories(root + "/empty");
  fs::create_directories(root + "/run");
  for (const char* name : {"/model/config.json", "/run/config.toml", "/rows.jsonl", "/rows.parquet",
                           "/axolotl.yaml", "/mine.toml"}) {
    std::ofstream(root + name) << "";
  }
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {root + "/model", "longshore init --model " + root + "/model"},
      {root + "/empty", "no run has begun in it"},
      {root + "/rows.jsonl", "--data.train=" + root + "/rows.jsonl"},
      {root + "/rows.parquet", "--data.train="},
      {root + "/axolotl.yaml", "longshore init --from " + root + "/axolotl.yaml"},
      {"optimizer.lr=1e-4", "--optimizer.lr=1e-4"}};
  for (const auto& [path, advice] : wrong) {
    const CheckedConfig checked = check_run_config({path}, {});
    ASSERT_EQ(checked.problems.size(), 1u) << path;
    EXPECT_EQ(checked.problems[0], why_no_run_file(path));
    EXPECT_NE(checked.problems[0].find(advice), std::string::npos) << checked.problems[0];
  }
  EXPECT_EQ(why_no_run_file(root + "/mine.toml"), "");
  EXPECT_EQ(why_no_run_file(root + "/absent.toml"), "");
  EXPECT_EQ(run_file_at(root + "/run"), root + "/run/config.toml");
  EXPECT_EQ(run_file_at(root + "/mine.toml"), root + "/mine.toml");
  fs::remove_all(root);
}

}  // namespace
}  // namespace longshore
