// Goal: a loss with a column of its own needs no product file but the tables that name both. It
// runs from rows of a file, over prepared tokens and batches, through the engine's head to its
// figures.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/prepare/prepare.h"
#include "data/tokens/batch.h"
#include "model/families/families.h"
#include "model/models/decoder_model.h"
#include "model/parameters/model_spec.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/engine/train_step.h"
#include "offload/optimizer/adamw.h"
#include "tests/model/priced_loss.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/use/evaluator.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 8;
constexpr int64_t kMicroBatch = 2;

class OwnLossRun : public testing::Test {
 protected:
  // Returns the rows of a file as a run's data, with the columns that the loss needs.
  SequenceData data_of(const std::string& name, const std::string& rows, const Loss& loss) const {
    write_file_durably(directory_.file(name), rows);
    PrepareOptions options;
    options.files = {directory_.file(name)};
    options.model_vocabulary_size = arch_.vocabulary;
    options.columns = loss.columns();
    options.cache = directory_.file("cache");
    options.threads = 1;
    options.data.max_tokens = kMaxTokens;
    PreparedData prepared = prepare_or_open(options);
    std::vector<std::shared_ptr<const Dataset>> files;
    for (auto& file : prepared.files) files.push_back(std::move(file));
    SequenceData data;
    data.dataset =
        std::make_unique<CombinedDataset>(std::move(files), std::vector<double>{}, HoldOut{});
    data.table = make_sequences(*data.dataset, {.packing = false, .max_tokens = kMaxTokens});
    return data;
  }

  // Returns an engine of the model with the same values each time.
  std::unique_ptr<Engine> engine_for(const LossTraits& loss) {
    PlanInputs inputs;
    inputs.model = &model_.spec();
    inputs.costs =
        unit_costs(model_, DType::kF32, 1,
                   {.positions = kMicroBatch * kMaxTokens, .longest_document = kMaxTokens});
    inputs.state.compute = inputs.state.drain = DType::kF32;
    inputs.topology = make_topology(ShardStrategy::kFullShard, 1, 1);
    inputs.sequences_per_step = 2 * kMicroBatch;
    inputs.micro_batch = kMicroBatch;
    inputs.max_tokens = kMaxTokens;
    inputs.loss = loss;
    inputs.device_cap = 2 * kGiB;
    auto engine = std::make_unique<Engine>(&model_, make_tier_plan(inputs, probe_machine()),
                                           std::make_unique<AdamWRule>(AdamWOptions{}));
    engine->load([](const std::string& name, int64_t begin, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) {
        const auto at = begin + static_cast<int64_t>(i) + std::ssize(name);
        out[i] = 0.05f * static_cast<float>(at * 7919 % 41 - 20) + 0.02f;
      }
    });
    return engine;
  }

  TemporaryDirectory directory_;
  ArchSpec arch_ =
      read_arch_spec(Json::parse(R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
                      "intermediate_size": 48, "num_hidden_layers": 1,
                      "num_attention_heads": 2, "num_key_value_heads": 1})"),
                     "config.json");
  DecoderModel model_{arch_, make_model_spec(arch_, {})};
};

// Prices are a number of a row or of each of its tokens. As weights of the plain loss they give the
// same sum, in an evaluation and in a step, and the figure is their mean.
TEST_F(OwnLossRun, GoesFromRowsToFigures) {
  const auto priced = std::make_shared<PricedLoss>();
  const auto plain = std::make_shared<Loss>();
  const auto rows = [](const std::string& one, const std::string& many) {
    return "{\"input_ids\": [5, 6, 7, 8], \"" + one + "\": 0.5}\n{\"input_ids\": [9, 3, 2], \"" +
           many + "\": [0, 2, 0.25]}\n{\"input_ids\": [11, 12], \"" + one + "\": 3}\n";
  };
  const SequenceData own = data_of("own.jsonl", rows("advantage", "advantages"), *priced);
  const SequenceData weighted = data_of("weighted.jsonl", rows("weight", "weights"), *plain);
  const auto engine = engine_for(priced->traits());
  const Evaluation evaluated =
      evaluate(*engine, own, Objective{.loss = priced}, 0, kMicroBatch, [] {});
  const Evaluation expected =
      evaluate(*engine, weighted, Objective{.loss = plain}, 0, kMicroBatch, [] {});
  EXPECT_EQ(evaluated.trained_tokens, 6);
  EXPECT_GT(evaluated.sums.loss, 0.0);
  EXPECT_NEAR(evaluated.sums.loss, expected.sums.loss, 1e-6 * expected.sums.loss);
  const double price = (3 * 0.5 + 2 + 0.25 + 3) / 6;
  EXPECT_EQ(record_of(evaluated).figures, (FigureValues{{"price", price}}));

  const StepBatches batches = make_eval_batches(*own.dataset, own.table, 0, kMicroBatch);
  const StepOutcome step =
      train_step(*engine, {.batches = engine->batches().load(batches.micro_batches, priced),
                           .loss_terms = loss_terms(batches, *priced),
                           .lr = 1e-3});
  EXPECT_FALSE(step.skipped);
  EXPECT_NEAR(step.loss, evaluated.loss, 1e-5 * evaluated.loss);
  EXPECT_EQ(priced->figures(step.sums), (FigureValues{{"price", price}}));
  const Evaluation after = evaluate(*engine, own, Objective{.loss = priced}, 0, kMicroBatch, [] {});
  EXPECT_LT(after.loss, evaluated.loss);
}

}  // namespace
}  // namespace longshore
