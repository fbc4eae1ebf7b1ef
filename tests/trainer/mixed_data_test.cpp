// Goal: batches of mixed files are equal at any number of ranks and after a resume at any step, and
// an epoch has the length that the mix says.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "data/tokens/dataset.h"
#include "trainer/data/run_data.h"

namespace longshore {
namespace {

constexpr int64_t kSteps = 15;

RunConfig make_config(bool shuffle) {
  RunConfig config;
  config.run.seed = 5;
  config.data.max_tokens = 16;
  config.data.shuffle = shuffle;
  config.train.steps = kSteps;
  config.train.sequences_per_step = 7;
  config.train.micro_batch = 2;
  return config;
}

// Mixes a file of 12 rows with one of 30 at equal shares: an epoch has each row of the second once,
// and the first two and a half times.
TrainingData make_data(const RunConfig& config, bool packing) {
  std::vector<std::shared_ptr<const Dataset>> files;
  for (const TokenId rows : {12, 30}) {
    auto file = std::make_shared<InMemoryDataset>();
    for (TokenId row = 0; row < rows; ++row) {
      std::vector<TokenId> tokens = {1000 * rows + row};
      for (TokenId t = 0; t < 1 + row % 8; ++t) tokens.push_back(t);
      file->add(tokens, tokens);
    }
    files.push_back(std::move(file));
  }
  const FileMix mix{.rule = DataSection::Mix::kRestart,
                    .entries = {{"small", 1}, {"large", 1}},
                    .probabilities = {},
                    .spread = !config.data.shuffle};
  SequenceData data;
  data.dataset = std::make_unique<CombinedDataset>(std::move(files), std::vector<double>{},
                                                   HoldOut{.seed = 5}, mix);
  PackingOptions options{.packing = packing, .max_tokens = config.data.max_tokens};
  if (config.data.shuffle) options.shuffle_seed = 5;
  data.table = make_sequences(*data.dataset, options);
  data.dropout = true;
  return {config, std::move(data)};
}

using Content = std::vector<std::vector<int64_t>>;  // tokens, positions, targets, starts, keys

// Returns the step's micro-batches, each from the rank that computes it.
std::vector<Content> step_on_ranks(const TrainingData& data, int64_t step, int32_t ranks) {
  std::map<size_t, Content> all;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const StepBatches batches = data.step_batches(Step(step), {Rank(rank), ranks});
    for (size_t k = 0; k < batches.micro_batches.size(); ++k) {
      const Batch& batch = batches.micro_batches[k];
      all[static_cast<size_t>(rank) + k * static_cast<size_t>(ranks)] = {
          batch.tokens(), batch.positions(), batch.targets(), batch.document_starts,
          batch.columns.get<kDropoutKeyColumn>()};
    }
  }
  std::vector<Content> contents;
  for (const auto& [k, content] : all) contents.push_back(content);
  return contents;
}

TEST(MixedData, GivesTheSameBatchesAtAnyNumberOfRanksAndAfterAResumeAtAnyStep) {
  for (const bool shuffle : {false, true}) {
    for (const bool packing : {false, true}) {
      const RunConfig config = make_config(shuffle);
      const TrainingData unbroken = make_data(config, packing);
      for (int64_t stop = 0; stop < kSteps; ++stop) {
        TrainingData resumed = make_data(config, packing);
        ASSERT_EQ(resumed.fingerprint(), unbroken.fingerprint());
        const DataState saved{.cursor = unbroken.cursor_after(Step(stop)),
                              .sequences = unbroken.sequence_count(),
                              .fingerprint = unbroken.fingerprint()};
        EXPECT_EQ(resumed.resume_at(Step(stop), saved, "here"), "");
        const std::vector<Content> wanted = step_on_ranks(unbroken, stop + 1, 1);
        ASSERT_EQ(wanted.size(), 4u);
        for (const int32_t ranks : {1, 2, 3, 8}) {
          EXPECT_EQ(step_on_ranks(resumed, stop + 1, ranks), wanted) << stop << " " << ranks;
        }
      }
    }
  }
}

// Goal: in every epoch each row of the larger file is read once and each of the smaller one two or
// three times, shuffled or not.
TEST(MixedData, ReadsTheRowsOfTheMixInEveryEpoch) {
  for (const bool shuffle : {false, true}) {
    RunConfig config = make_config(shuffle);
    config.train.steps = 0;
    config.train.epochs = 2.0;
    config.train.sequences_per_step = 6;
    const TrainingData data = make_data(config, /*packing=*/false);
    ASSERT_EQ(data.sequence_count(), 60);
    ASSERT_EQ(data.total_steps(), 20);
    std::vector<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::map<int64_t, int> times;
      std::vector<int64_t>& order = orders.emplace_back();
      for (int64_t step = 1; step <= 10; ++step) {
        for (const Batch& batch : data.step_batches(Step(10 * epoch + step), {}).micro_batches) {
          for (size_t d = 0; d + 1 < batch.document_starts.size(); ++d) {
            order.push_back(batch.tokens().at(static_cast<size_t>(batch.document_starts[d])));
            ++times[order.back()];
          }
        }
      }
      ASSERT_EQ(times.size(), 42u);
      for (const auto& [first, count] : times) {
        if (first >= 30'000) {
          EXPECT_EQ(count, 1) << first;
        } else {
          EXPECT_TRUE(count == 2 || count == 3) << first << ": " << count;
        }
      }
    }
    EXPECT_EQ(orders[0] == orders[1], !shuffle);
  }
}

}  // namespace
}  // namespace longshore
