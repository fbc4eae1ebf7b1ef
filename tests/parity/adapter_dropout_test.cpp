// Runs of adapters with dropout: which runs have the same masks, where there are none, and how the
// setting is written and read.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "data/tokens/batch.h"
#include "data/tokens/dataset.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

constexpr int64_t kPackedTokens = 96;

// Returns a copy of PEFT's adapter for the golden case `llama` with this dropout. Its B is not
// zero, so that every gradient depends on the masks.
std::string adapter_with_dropout(const std::string& dropout) {
  const std::string from = adapter_golden_directory("llama") + "/adapter";
  const std::string to = scratch_directory("adapter-dropout-" + dropout);
  std::filesystem::create_directories(to);
  std::filesystem::copy(
      from, to,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  Json config = read_json_file(from + "/adapter_config.json", JsonLimits{});
  config["lora_dropout"] = Json::parse(dropout);
  std::ofstream(to + "/adapter_config.json") << config.dump();
  return to;
}

Arguments arguments_with(const std::string& adapter, const Arguments& more) {
  return joined(
      joined(RunDriver::golden_arguments("llama"),
             {"--adapter.kind=lora", "--adapter.path=\"" + adapter + "\"", "--train.micro_batch=1",
              "--train.max_grad_norm=0", "--optimizer.weight_decay=0.0"}),
      more);
}

// The loss and the gradients of one step. (A tenth of a gradient is the first moment.)
struct OneStep {
  double loss = 0.0;
  std::map<std::string, std::vector<float>> state;
};

OneStep step_of(const RunDriver& run) {
  return {run.steps("loss").at(0), run.state()};
}

OneStep one_step(const std::string& adapter, const Arguments& more) {
  RunDriver run("dropout-step");
  EXPECT_EQ(run.train(joined(arguments_with(adapter, more), {"--train.steps=1"})), 0);
  return step_of(run);
}

// Returns the largest relative difference of the gradients.
double difference(const OneStep& a, const OneStep& b) {
  double largest = 0.0;
  EXPECT_EQ(a.state.size(), b.state.size());
  for (const auto& [name, values] : a.state) {
    if (!name.ends_with(".exp_avg")) continue;
    largest = std::max(largest, relative_error(b.state.at(name), values));
  }
  return largest;
}

// Returns the rows of the golden case as the run reads them.
InMemoryDataset golden_rows() {
  InMemoryDataset rows;
  std::ifstream file(golden_directory("llama") + "/train.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    const auto ids = row.at("input_ids").get<std::vector<TokenId>>();
    rows.add(ids, row.value("labels", Json(ids)).get<std::vector<TokenId>>());
  }
  return rows;
}

// Micro-batches, packing and ranks differ by the order of sums alone, as they do without dropout;
// other masks would give other gradients.
TEST(AdapterDropout, IsTheSameForMicroBatchesPackingAndRanks) {
  const InMemoryDataset rows = golden_rows();
  const SequenceTable table = make_sequences(
      rows, {.packing = true, .max_tokens = kPackedTokens, .shuffle_seed = std::nullopt});
  ASSERT_LT(table.sequence_count(), rows.document_count());
  const std::string adapter = adapter_with_dropout("0.25");
  const std::string key = "--train.sequences_per_step=";
  const Arguments all = {key + std::to_string(rows.document_count())};
  const OneStep alone = one_step(adapter, all);
  EXPECT_GE(difference(alone, one_step(adapter_with_dropout("0.0"), all)), 1e-3);
  EXPECT_GE(difference(alone, one_step(adapter, joined(all, {"--run.seed=77"}))), 1e-3);

  const OneStep several = one_step(adapter, joined(all, {"--train.micro_batch=3"}));
  RunDriver ranks("dropout-ranks");
  ASSERT_EQ(ranks.train_ranks(2, joined(arguments_with(adapter, all), {"--train.steps=1"})), 0)
      << ranks.output();
  const OneStep packed =
      one_step(adapter, {key + std::to_string(table.sequence_count()), "--data.packing=true",
                         "--data.max_tokens=" + std::to_string(kPackedTokens)});
  for (const OneStep& other : {several, step_of(ranks), packed}) {
    EXPECT_LE(difference(alone, other), 5e-5);
    EXPECT_NEAR(other.loss, alone.loss, 1e-5 * alone.loss);
  }
}

// Every step and every epoch has other masks: the loss of the same row of the same model differs.
TEST(AdapterDropout, DiffersFromEpochToEpoch) {
  RunDriver run("dropout-epochs");
  const int64_t rows = golden_rows().document_count();
  const Arguments still = {"--optimizer.lr=0.0", "--train.sequences_per_step=1",
                           "--train.steps=" + std::to_string(2 * rows)};
  ASSERT_EQ(run.train(arguments_with(adapter_with_dropout("0.25"), still)), 0);
  const std::vector<double> losses = run.steps("loss");
  ASSERT_EQ(std::ssize(losses), 2 * rows);
  for (int64_t row = 0; row < rows; ++row) {
    EXPECT_NE(losses[static_cast<size_t>(row)], losses[static_cast<size_t>(row + rows)]) << row;
  }
}

// An adapter that has dropout is trained with it and evaluated without, and its export has it.
TEST(AdapterDropout, IsReadUsedInTrainingAloneAndWritten) {
  const std::string with = adapter_with_dropout("0.5"), without = adapter_with_dropout("0.0");
  const std::string rows = "=[\"" + golden_directory("llama") + "/train.jsonl\"]";
  const Arguments still = {"--optimizer.lr=0.0", "--train.steps=1", "--data.eval" + rows,
                           "--eval.every_steps=1", "--checkpoint.export=end"};
  RunDriver dropped("dropout-used"), plain("dropout-unused");
  ASSERT_EQ(dropped.train(arguments_with(with, still)), 0);
  ASSERT_EQ(plain.train(arguments_with(without, still)), 0);
  EXPECT_NE(dropped.steps("loss").at(0), plain.steps("loss").at(0));
  const auto evaluated = [](const RunDriver& run) {
    return run.metrics("eval").at(0).at("loss").get<double>();
  };
  EXPECT_EQ(evaluated(dropped), evaluated(plain));
  const auto loss_of = [&](const RunDriver& run) {
    return eval_loss({run.directory() + "/config.toml", "--data.eval" + rows});
  };
  EXPECT_EQ(loss_of(dropped), loss_of(plain));
  const auto written = [](const RunDriver& run) {
    return read_json_file(run.directory() + "/hf/adapter_config.json", JsonLimits{})
        .at("lora_dropout")
        .get<double>();
  };
  EXPECT_EQ(written(dropped), 0.5);
  EXPECT_EQ(written(plain), 0.0);
}

// A new adapter has the dropout of the run file, and its export says so.
TEST(AdapterDropout, OfTheRunFileIsWritten) {
  RunDriver run("dropout-new");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"),
                             {"--adapter.kind=dora", "--adapter.dropout=0.05", "--train.steps=1",
                              "--checkpoint.export=end"})),
            0);
  const Json config = read_json_file(run.directory() + "/hf/adapter_config.json", JsonLimits{});
  EXPECT_EQ(config.at("lora_dropout"), 0.05);
}

}  // namespace
}  // namespace longshore
