// A model with matrices beyond 2^20 elements, trained as users do: bf16, default state, clipping.
// Goal: loops over chunks and tiles reach every element, from the model's file to the state, the
// drives, the checkpoint and the export. The values are known without running a model: a row of the
// embedding that no token uses only decays, and Adam's first step moves every weight with a
// gradient by the learning rate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

constexpr int64_t kVocabulary = 20480, kHidden = 64;
static_assert(kVocabulary * kHidden > int64_t{1} << 20);
constexpr float kLr = 1e-3f, kDecay = 0.5f;
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

class LargeMatrix : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = std::make_unique<RunDriver>("large-matrix");
    std::filesystem::create_directories(files_->directory());
    ASSERT_EQ(run_command_line({"init-model", "--preset", "tiny-llama", "--vocabulary",
                                std::to_string(kVocabulary), model()}),
              0);
    std::ofstream rows(files_->directory() + "/rows.jsonl");
    for (int64_t row = 0; row < 8; ++row) {
      rows << "{\"input_ids\": [";
      for (int64_t i = 0; i < 24; ++i) rows << (i == 0 ? "" : ", ") << token(row, i);
      rows << "]}\n";
    }
  }
  static void TearDownTestSuite() { files_.reset(); }

  static std::string model() { return files_->directory() + "/model"; }
  // Returns odd tokens over the whole vocabulary.
  static int64_t token(int64_t row, int64_t i) {
    return (row * 5501 + i * 947) % (kVocabulary / 2) * 2 + 1;
  }
  static bool used(int64_t token_id) {
    for (int64_t row = 0; row < 8; ++row) {
      for (int64_t i = 0; i < 24; ++i) {
        if (token(row, i) == token_id) return true;
      }
    }
    return false;
  }
  static Arguments arguments(int64_t steps) {
    return {"--model.path=\"" + model() + "\"",
            "--data.train=[\"" + files_->directory() + "/rows.jsonl\"]", "--data.max_tokens=24",
            "--train.steps=" + std::to_string(steps), "--train.sequences_per_step=2",
            "--optimizer.lr=0.001", "--optimizer.weight_decay=0.5",
            // With this eps a step is as long as the rate, also for the smallest gradients.
            "--optimizer.eps=1e-30", "--schedule.name=constant", "--checkpoint.every_steps=2",
            "--device.threads=1", "--offload.threads=2", "--log.every_steps=1000"};
  }

  static std::unique_ptr<RunDriver> files_;
};

std::unique_ptr<RunDriver> LargeMatrix::files_;

// Rows that no token uses have decayed four times and are otherwise unchanged.
TEST_F(LargeMatrix, RowsThatNoTokenUsesOnlyDecay) {
  const auto before = read_tensors(model() + "/model.safetensors").at(kEmbedding);
  for (const char* format : {"split-bf16", "split-int8", "fp32"}) {
    RunDriver run("large-decay");
    ASSERT_EQ(run.train(joined(arguments(4), {std::string("--offload.state_format=") + format})),
              0);
    const auto after = run.state().at(std::string(kEmbedding) + ".master");
    ASSERT_EQ(after.size(), before.size());
    int64_t rows = 0, wrong = 0;
    for (int64_t row = 0; row < kVocabulary; ++row) {
      if (used(row)) continue;
      ++rows;
      for (int64_t i = row * kHidden; i < (row + 1) * kHidden; ++i) {
        float expected = before[static_cast<size_t>(i)];
        for (int step = 0; step < 4; ++step) expected *= 1.0f - kLr * kDecay;
        wrong += std::fabs(after[static_cast<size_t>(i)] - expected) > 1e-6f * std::fabs(expected);
      }
    }
    EXPECT_GT(rows, kVocabulary - 200);
    EXPECT_EQ(wrong, 0) << format << ": elements of " << rows << " rows";
  }
}

// Every weight of the head has a gradient, and Adam's first step moves each by the rate, apart from
// decay. Gradients and moments in bf16 change that by a hundredth.
TEST_F(LargeMatrix, TheFirstStepMovesEveryWeightOfTheHeadByTheRate) {
  const auto before = read_tensors(model() + "/model.safetensors").at(kHead);
  RunDriver run("large-first");
  ASSERT_EQ(run.train(arguments(1)), 0);
  const auto after = run.state().at(std::string(kHead) + ".master");
  ASSERT_EQ(after.size(), before.size());
  int64_t wrong = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const float moved = after[i] - before[i] * (1.0f - kLr * kDecay);
    wrong += std::fabs(std::fabs(moved) - kLr) > 0.02f * kLr;
  }
  // A gradient of exactly zero (products of bf16 that cancel) moves nothing.
  EXPECT_LE(wrong, static_cast<int64_t>(before.size()) / 1000);
}

// A group's own rate applies to its parameters and no others.
TEST_F(LargeMatrix, AGroupMovesByItsOwnRate) {
  const auto before = read_tensors(model() + "/model.safetensors");
  const RunDriver run("large-group");
  ASSERT_EQ(run.train(joined(arguments(1), {"--optimizer.groups=[{ parameters = [\"lm_head.*\"], "
                                            "lr = 0.004 }]"})),
            0);
  const auto after = run.state();
  const auto middle_move = [&](const std::string& name, float rate) {
    const std::vector<float>& from = before.at(name);
    const std::vector<float>& to = after.at(name + ".master");
    std::vector<float> moved;
    for (size_t i = 0; i < from.size(); ++i) {
      moved.push_back(std::fabs(to[i] - from[i] * (1.0f - rate * kDecay)));
    }
    std::ranges::nth_element(moved, moved.begin() + static_cast<int64_t>(moved.size() / 2));
    return moved[moved.size() / 2];
  };
  EXPECT_NEAR(middle_move(kHead, 4 * kLr), 4 * kLr, 0.08f * kLr);
  const std::string other = "model.layers.0.mlp.up_proj.weight";
  EXPECT_NEAR(middle_move(other, kLr), kLr, 0.02f * kLr);
}

// A run that is stopped and resumed, also on drives, ends with the same bits.
TEST_F(LargeMatrix, IsTheSameWhereverItLivedAndWhereverItStopped) {
  const RunDriver whole("large-whole"), halves("large-halves"), drives("large-drives");
  ASSERT_EQ(whole.train(arguments(4)), 0);
  const auto wanted = whole.state();
  ASSERT_EQ(halves.train(arguments(2)), 0);
  ASSERT_EQ(halves.train(arguments(4)), 0);
  EXPECT_TRUE(halves.state() == wanted);
  const Arguments tier = {"--offload.optimizer=nvme", "--offload.parameters=nvme",
                          "--offload.nvme=[\"" + drives.directory() + "/drive\"]"};
  ASSERT_EQ(drives.train(joined(arguments(2), tier)), 0);
  ASSERT_EQ(drives.train(joined(arguments(4), tier)), 0);
  EXPECT_TRUE(drives.state() == wanted);
  for (const char* threads : {"1", "4"}) {
    const RunDriver other("large-threads");
    ASSERT_EQ(other.train(joined(arguments(4), {std::string("--offload.threads=") + threads})), 0);
    EXPECT_TRUE(other.state() == wanted) << threads << " threads of the update";
  }
}

// The export equals the state, element by element.
TEST_F(LargeMatrix, IsExportedWhole) {
  const RunDriver run("large-export");
  ASSERT_EQ(run.train(joined(arguments(2), {"--checkpoint.export=end"})), 0);
  const auto state = run.state();
  const auto exported = read_tensors(run.directory() + "/hf/model.safetensors");
  for (const char* name : {kEmbedding, kHead}) {
    EXPECT_TRUE(exported.at(name) == state.at(std::string(name) + ".master")) << name;
  }
}

}  // namespace
}  // namespace longshore
