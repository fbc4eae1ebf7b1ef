// Goal: order and content of batches are the same at 1, 2, 4 and 8 ranks and across a resume at any
// step.
#include "trainer/run/run_data.h"

#include <gtest/gtest.h>

#include "data/in_memory_dataset.h"
#include "trainer/run/rank_share.h"

namespace longshore {
namespace {

constexpr int64_t kSteps = 23;

// 37 documents of 2 to 9 tokens; seven sequences a step in micro-batches of two, so that some ranks
// have more than others and some none.
TrainingData make_data() {
  RunConfig config;
  config.run.seed = 5;
  config.data.max_tokens = 16;
  config.train.steps = kSteps;
  config.train.sequences_per_step = 7;
  config.train.micro_batch = 2;
  auto dataset = std::make_unique<InMemoryDataset>();
  for (TokenId document = 0; document < 37; ++document) {
    std::vector<TokenId> tokens;
    for (TokenId t = 0; t < 2 + document % 8; ++t) tokens.push_back(100 * document + t);
    dataset->add(tokens, tokens);
  }
  SequenceData data;
  data.table = make_sequences(*dataset, {.packing = true, .max_tokens = 16, .shuffle_seed = 5});
  data.dataset = std::move(dataset);
  return {config, std::move(data)};
}

using Batch = std::vector<std::vector<int64_t>>;  // tokens, positions, targets, starts

Batch content_of(const HostBatch& batch) {
  const auto values = [](std::span<const int64_t> span) {
    return std::vector<int64_t>(span.begin(), span.end());
  };
  return {values(batch.tokens), values(batch.positions), values(batch.targets),
          values(batch.document_starts)};
}

// The step's micro-batches, each taken from the rank that computes it.
std::vector<Batch> step_on_ranks(const TrainingData& data, Step step, int32_t ranks) {
  const StepBatches batches = data.step_batches(step);
  const std::vector<HostBatch> views = host_batches(batches.micro_batches);
  std::vector<Batch> all(views.size());
  size_t taken = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<HostBatch> own = share_of(views, Rank(rank), ranks);
    for (size_t k = 0; k < own.size(); ++k) {
      all.at(static_cast<size_t>(rank) + k * static_cast<size_t>(ranks)) = content_of(own[k]);
      ++taken;
    }
  }
  EXPECT_EQ(taken, views.size()) << "each micro-batch belongs to one rank";
  return all;
}

TEST(TrainingData, GivesTheSameBatchesAtAnyNumberOfRanksAndAfterAResumeAtAnyStep) {
  const TrainingData unbroken = make_data();
  std::vector<std::vector<Batch>> wanted;
  for (int64_t step = 1; step <= kSteps; ++step) {
    wanted.push_back(step_on_ranks(unbroken, Step(step), 1));
    ASSERT_EQ(wanted.back().size(), 4u);
  }
  EXPECT_NE(wanted[0], wanted[1]);
  for (int64_t stop = 0; stop < kSteps; ++stop) {
    TrainingData resumed = make_data();
    resumed.resume_at(Step(stop), unbroken.cursor_after(Step(stop)));
    for (const int32_t ranks : {1, 2, 4, 8}) {
      for (int64_t step = stop + 1; step <= kSteps; ++step) {
        ASSERT_EQ(step_on_ranks(resumed, Step(step), ranks), wanted[static_cast<size_t>(step - 1)])
            << ranks << " ranks, stopped after " << stop << ", step " << step;
      }
      EXPECT_EQ(resumed.cursor_after(Step(kSteps)), unbroken.cursor_after(Step(kSteps)));
    }
  }
}

}  // namespace
}  // namespace longshore
