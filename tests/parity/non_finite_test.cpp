// Weights that are not finite, and runs that train nothing. Goal: neither ends as a success.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "hf/safetensors_reader.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Overwrites the first `elements` elements of an F32 tensor of the model; -1: all.
void poison_model(const std::string& model, const std::string& tensor, int64_t elements,
                  float value) {
  const std::string path = model + "/model.safetensors";
  Bytes begin = 0;
  int64_t count = 0;
  {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const TensorInfo& info : file.tensors()) {
      if (info.name != tensor) continue;
      ASSERT_EQ(info.dtype, TensorDType::kF32);
      begin = info.file_begin;
      count = elements < 0 ? info.elements() : elements;
    }
  }
  ASSERT_GT(count, 0) << tensor;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(begin);
  for (int64_t i = 0; i < count; ++i) {
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

class NonFinite : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(run_.directory());
    fs::copy(golden_directory("llama-tied"), model());
  }
  std::string model() const { return run_.directory() + "/model"; }
  Arguments arguments() const {
    return joined(RunDriver::golden_arguments("llama-tied"),
                  {"--train.steps=3", "--checkpoint.export=end", "--model.path=\"" + model() + "\"",
                   "--run.dir=\"" + run_.directory() + "\"",
                   "--data.cache=\"" + run_.directory() + "/cache\""});
  }
  void poison(const std::string& tensor, int64_t elements, float value) const {
    poison_model(model(), tensor, elements, value);
  }
  int call(const std::string& command, const Arguments& more = {}) {
    testing::internal::CaptureStderr();
    const int exit_code = run_command_line(
        joined(joined({command, run_.directory() + "/empty.toml"}, arguments()), more));
    text_ = testing::internal::GetCapturedStderr();
    return exit_code;
  }
  void expect_said(const std::string& words) const {
    EXPECT_NE(text_.find(words), std::string::npos) << words << " in " << text_;
  }

  const RunDriver run_{"non-finite"};
  std::string text_;
};

constexpr const char* kMatrix = "model.layers.0.mlp.up_proj.weight";

// A tensor without any finite value is refused.
TEST_F(NonFinite, WeightsWithoutAFiniteValueAreRefused) {
  poison(kMatrix, -1, std::numeric_limits<float>::quiet_NaN());
  std::ofstream(run_.directory() + "/empty.toml").close();
  EXPECT_EQ(call("train"), 5);
  expect_said(kMatrix);
  expect_said("every step would be skipped");
}

// A run without a single applied step ends with code 7.
TEST_F(NonFinite, ARunWithoutOneAppliedStepIsNoSuccess) {
  poison(kMatrix, 1, std::numeric_limits<float>::infinity());
  std::ofstream(run_.directory() + "/empty.toml").close();
  EXPECT_EQ(call("train"), 7);
  expect_said(std::string("1 tensor: '") + kMatrix + "'");
  expect_said("none of the run's 3 steps was applied");
  EXPECT_FALSE(fs::exists(run_.directory() + "/hf")) << "nothing to export";
  EXPECT_EQ(read_json_file(run_.directory() + "/run.json", JsonLimits{}).at("exit_code"), 7);
}

// Weights that are not finite are exported only when asked for.
TEST_F(NonFinite, WeightsAreExportedOnlyWhereToldTo) {
  poison(kMatrix, 1, std::numeric_limits<float>::quiet_NaN());
  std::ofstream(run_.directory() + "/empty.toml").close();
  const std::string to = run_.directory() + "/out";
  EXPECT_EQ(call("export", {"--from", "model", "--to", to}), 5);
  expect_said(kMatrix);
  expect_said("--allow-nonfinite");
  EXPECT_FALSE(fs::exists(to));
  EXPECT_EQ(call("export", {"--from", "model", "--to", to, "--allow-nonfinite"}), 0) << text_;
  EXPECT_TRUE(fs::exists(to + "/model.safetensors"));
}

// A run with every parameter frozen is refused.
TEST_F(NonFinite, AModelWithEverythingFrozenIsRefused) {
  std::ofstream(run_.directory() + "/empty.toml").close();
  EXPECT_EQ(call("train", {"--train.freeze=[\"*\"]"}), 2);
  expect_said("every parameter is frozen");
}

// A skipped step changes nothing but the step's number: parameters, moments and the count of
// updates continue as if its row did not exist; learning rate and record continue as if it did.
TEST(SkippedStep, IsAsIfItsRowsWereNotThere) {
  const RunDriver with("skipped-with"), without("skipped-without"), clean("skipped-clean");
  fs::create_directories(with.directory());
  const std::string model = with.directory() + "/model";
  fs::copy(golden_directory("llama"), model);
  // Token 0 gives NaN; only the third row has it.
  const Json config = read_json_file(model + "/config.json", JsonLimits{});
  poison_model(model, "model.embed_tokens.weight", config.at("hidden_size").get<int64_t>(),
               std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::string> rows = {"[5, 9, 3, 7, 2]", "[4, 8, 6, 1]", "[3, 0, 5, 2]",
                                         "[7, 7, 1, 9, 4]"};
  const auto arguments = [&](const std::vector<size_t>& chosen, const std::string& name) {
    const std::string path = with.directory() + "/" + name + ".jsonl";
    std::ofstream file(path);
    for (const size_t row : chosen) file << "{\"input_ids\": " << rows[row] << "}\n";
    return joined(RunDriver::golden_arguments("llama"),
                  {"--model.path=\"" + model + "\"", "--data.train=[\"" + path + "\"]",
                   "--train.steps=" + std::to_string(chosen.size()), "--train.sequences_per_step=1",
                   "--train.max_grad_norm=0.9"});
  };
  ASSERT_EQ(with.train(arguments({0, 1, 2, 3}, "all")), 0);
  ASSERT_EQ(without.train(arguments({0, 1, 3}, "three")), 0);
  std::vector<bool> skipped;
  for (const Json& step : with.metrics("step")) skipped.push_back(step.at("skipped").get<bool>());
  EXPECT_EQ(skipped, (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(with.metrics("step").back().at("skipped_total"), 1);
  const auto state = with.state(), wanted = without.state();
  ASSERT_EQ(state.size(), wanted.size());
  for (const auto& [name, values] : wanted) {
    const auto& found = state.at(name);
    ASSERT_EQ(found.size(), values.size()) << name;
    // NaN compares equal by its bits.
    EXPECT_EQ(std::memcmp(found.data(), values.data(), values.size() * sizeof(float)), 0) << name;
  }
  EXPECT_EQ(with.metrics("step").back().at("loss"), without.metrics("step").back().at("loss"));
  const std::string linear = "--schedule.name=linear";
  ASSERT_EQ(
      with.train(joined(arguments({0, 1, 2, 3}, "all"), {linear, "--checkpoint.resume=never"})), 0);
  ASSERT_EQ(clean.train(joined(arguments({0, 1, 1, 3}, "clean"), {linear})), 0);
  EXPECT_EQ(with.steps("lr"), clean.steps("lr")) << "a skipped step is a step of the schedule";
}

}  // namespace
}  // namespace longshore
