// The --json output of commands that make files. Goal: standard output is one JSON document with
// the documented keys, and its values agree with the files.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/trainer/temporary_directory.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  return read_whole_file(path, kGiB);
}

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

// Parses all of standard output, so text before or after the document fails.
Json printed(const std::vector<std::string>& command) {
  const Ended ended = run_command(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  Json json = Json::parse(ended.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << ended.out;
  return json;
}

int64_t tokens_of(const std::string& path) {
  TokenizerFiles files;
  files.tokenizer = read(path);
  return Tokenizer::from_files(files, path).id_limit();
}

// Returns the number of fp32 elements that the header of the weights declares.
int64_t elements_of(const std::string& path) {
  const std::string bytes = read(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return static_cast<int64_t>((bytes.size() - sizeof length - length) / sizeof(float));
}

class JsonOutput : public testing::Test {
 protected:
  JsonOutput() {
    std::ofstream rows(rows_);
    for (int i = 0; i < 40; ++i) rows << R"({"text": "row )" << i << R"( of the rows"})" << "\n";
  }

  TemporaryDirectory directory_;
  std::string model_ = directory_.file("model"), rows_ = directory_.file("rows.jsonl");
};

// init-model prints what it made.
TEST_F(JsonOutput, InitModelSaysWhatItMade) {
  const Json json =
      printed({"init-model", model_, "--preset", "tiny-qwen3", "--vocabulary", "300", "--json"});
  EXPECT_EQ(keys_of(json), (std::set<std::string>{"parameters", "path", "preset", "tokens"}));
  EXPECT_EQ(json.at("path"), model_);
  EXPECT_EQ(json.at("preset"), "tiny-qwen3");
  EXPECT_EQ(json.at("tokens"), 300);
  EXPECT_EQ(Json::parse(read(model_ + "/config.json")).at("vocab_size"), json.at("tokens"));
  EXPECT_EQ(json.at("parameters"), elements_of(model_ + "/model.safetensors"));
}

// tokenizer train prints what it made.
TEST_F(JsonOutput, TokenizerTrainSaysWhatItMade) {
  const std::string file = directory_.file("tokenizer.json");
  const Json json =
      printed({"tokenizer", "train", rows_, "--vocabulary", "270", "--to", file, "--json"});
  EXPECT_EQ(keys_of(json), (std::set<std::string>{"path", "tokens"}));
  EXPECT_EQ(json.at("path"), file);
  EXPECT_EQ(json.at("tokens"), tokens_of(file));
  EXPECT_LE(json.at("tokens").get<int64_t>(), 270);
}

// Goal: init prints the costs that the plan of its run file has.
TEST_F(JsonOutput, InitSaysWhatItWroteAndWhatItTakes) {
  const Json model = printed({"init-model", model_, "--json"});
  const std::string file = directory_.file("run.toml"), run = directory_.file("run");
  const Json json = printed({"init", file, "--model", model_, "--data", rows_, "--dir", run,
                             "--machine", "rtx-4090", "--json"});
  EXPECT_EQ(keys_of(json),
            (std::set<std::string>{"checkpoint_bytes", "device", "device_bytes", "fits_with",
                                   "host_bytes", "machine", "model", "parameters", "path", "ranks",
                                   "recipe", "rows", "rows_left_out", "run_directory",
                                   "state_on_drives"}));
  EXPECT_EQ(json.at("path"), file);
  EXPECT_TRUE(json.at("recipe").is_null());
  EXPECT_EQ(json.at("ranks"), 1);
  EXPECT_EQ(json.at("model"), model_);
  EXPECT_EQ(json.at("run_directory"), run);
  EXPECT_EQ(json.at("device"), "cuda");
  EXPECT_EQ(json.at("state_on_drives"), false);
  EXPECT_EQ(json.at("parameters"), model.at("parameters"));
  EXPECT_FALSE(json.at("fits_with").get<std::string>().empty());
  const Json plan = printed({"plan", file, "--machine", "rtx-4090", "--json"});
  EXPECT_EQ(json.at("device_bytes"), plan.at("device").at("total_bytes"));
  EXPECT_EQ(json.at("host_bytes"), plan.at("host").at("total_bytes"));
  EXPECT_EQ(json.at("checkpoint_bytes"), plan.at("nvme").at("checkpoint_bytes"));
}

// Goal: a command that fails prints no document.
TEST_F(JsonOutput, WhatFailsPrintsNoDocument) {
  fs::create_directories(model_);
  std::ofstream(model_ + "/mine") << "mine";
  const std::string none = directory_.file("none");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"init-model", model_, "--json"},
        {"tokenizer", "train", none, "--to", directory_.file("t.json"), "--json"},
        {"init", directory_.file("run.toml"), "--model", none, "--data", rows_, "--json"},
        {"check", "gpu", "--gpu", "1023", "--json"}}) {
    const Ended ended = run_command(command);
    EXPECT_NE(ended.exit_code, 0) << command.front();
    EXPECT_EQ(ended.out, "") << command.front();
    EXPECT_NE(ended.err, "") << command.front();
  }
}

}  // namespace
}  // namespace longshore
