// Packing changes which rows share a sequence, but not the losses of rows or the gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "data/tokens/batch.h"
#include "data/tokens/dataset.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr int64_t kPackedTokens = 96;

std::vector<std::string> arguments_of(const std::string& golden,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> arguments = RunDriver::golden_arguments(golden);
  arguments.insert(arguments.end(), {"--optimizer.weight_decay=0.0", "--train.micro_batch=1"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> packed(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--data.packing=true",
                                        "--data.max_tokens=" + std::to_string(kPackedTokens)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Returns the rows of the case as the run packs them.
InMemoryDataset rows_of(const std::string& golden) {
  InMemoryDataset rows;
  std::ifstream file(golden_directory(golden) + "/train.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    const auto ids = row.at("input_ids").get<std::vector<TokenId>>();
    const Json labels = row.value("labels", Json(ids));
    rows.add(ids, labels.get<std::vector<TokenId>>());
  }
  return rows;
}

class PackedTraining : public testing::TestWithParam<std::string> {};

// Goal: a row's loss does not depend on its neighbours. With a learning rate of 0 each step shows
// the loss of one sequence of the same model.
TEST_P(PackedTraining, GivesEveryRowTheLossThatItHasAlone) {
  const InMemoryDataset rows = rows_of(GetParam());
  const SequenceTable table = make_sequences(
      rows, {.packing = true, .max_tokens = kPackedTokens, .shuffle_seed = std::nullopt});
  ASSERT_LT(table.sequence_count(), rows.document_count());
  const std::vector<std::string> still = {"--optimizer.lr=0.0", "--train.sequences_per_step=1"};
  RunDriver alone("alone"), together("together");
  std::vector<std::string> arguments = still;
  arguments.push_back("--train.steps=" + std::to_string(rows.document_count()));
  ASSERT_EQ(alone.train(arguments_of(GetParam(), arguments)), 0);
  arguments.back() = "--train.steps=" + std::to_string(table.sequence_count());
  ASSERT_EQ(together.train(arguments_of(GetParam(), packed(arguments))), 0);
  const std::vector<double> row_losses = alone.steps("loss");
  const std::vector<double> sequence_losses = together.steps("loss");
  for (int64_t sequence = 0; sequence < table.sequence_count(); ++sequence) {
    double sum = 0.0;
    int64_t trained = 0;
    for (const int64_t row : table.documents_of(sequence)) {
      const int64_t own = rows.document_trained_tokens(row);
      sum += row_losses.at(static_cast<size_t>(row)) * static_cast<double>(own);
      trained += own;
    }
    const double expected = sum / static_cast<double>(trained);
    EXPECT_NEAR(sequence_losses.at(static_cast<size_t>(sequence)), expected, 1e-5 * expected)
        << "sequence " << sequence;
  }
}

// Goal: packed rows give the same gradients; after one step the first moment is a tenth of them.
TEST_P(PackedTraining, GivesTheGradientsOfUnpackedTraining) {
  const InMemoryDataset rows = rows_of(GetParam());
  const SequenceTable table = make_sequences(
      rows, {.packing = true, .max_tokens = kPackedTokens, .shuffle_seed = std::nullopt});
  RunDriver alone("alone"), together("together");
  ASSERT_EQ(alone.train(arguments_of(
                GetParam(), {"--train.steps=1", "--train.sequences_per_step=" +
                                                    std::to_string(rows.document_count())})),
            0);
  ASSERT_EQ(
      together.train(arguments_of(
          GetParam(), packed({"--train.steps=1", "--train.sequences_per_step=" +
                                                     std::to_string(table.sequence_count())}))),
      0);
  EXPECT_NEAR(together.steps("loss").at(0), alone.steps("loss").at(0),
              1e-5 * alone.steps("loss").at(0));
  EXPECT_NEAR(together.steps("grad_norm").at(0), alone.steps("grad_norm").at(0),
              1e-5 * alone.steps("grad_norm").at(0));
  const auto expected = alone.state(), found = together.state();
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    if (!name.ends_with(".exp_avg")) continue;
    EXPECT_LE(relative_error(found.at(name), values), 1e-5) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, PackedTraining,
                         testing::Values("llama", "qwen3", "gemma2", "gemma3_text", "gemma4_text",
                                         "phi3-long", "qwen3_5_text", "lfm2", "nemotron_h",
                                         "nemotron_h-moe", "nemotron_h-latent", "qwen3_moe",
                                         "mixtral", "olmoe", "qwen2_moe", "gpt_oss", "ministral3",
                                         "qwen3_next", "glm4_moe", "deepseek_v3", "gemma4_text-moe",
                                         "gemma4_text-shared", "gemma4_text-moe-shared",
                                         "gemma4-e2b"),
                         golden_test_name);

}  // namespace
}  // namespace longshore
