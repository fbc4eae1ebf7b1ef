// Goal: batches are equal at 1, 2, 4 and 8 ranks and after a resume at any step.
#include "trainer/data/run_data.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "data/tokens/dataset.h"

namespace longshore {
namespace {

constexpr int64_t kSteps = 23;

// Makes 37 documents of 2 to 9 tokens and seven sequences per step in micro-batches of two, so that
// some ranks have more than others and some none.
RunConfig make_config() {
  RunConfig config;
  config.run.seed = 5;
  config.data.max_tokens = 16;
  config.train.steps = kSteps;
  config.train.sequences_per_step = 7;
  config.train.micro_batch = 2;
  return config;
}

TrainingData make_data(const RunConfig& config = make_config()) {
  auto dataset = std::make_unique<InMemoryDataset>();
  for (TokenId document = 0; document < 37; ++document) {
    std::vector<TokenId> tokens;
    for (TokenId t = 0; t < 2 + document % 8; ++t) tokens.push_back(100 * document + t);
    dataset->add(tokens, tokens);
  }
  SequenceData data;
  data.table = make_sequences(
      *dataset, {.packing = true, .max_tokens = config.data.max_tokens, .shuffle_seed = 5});
  data.dataset = std::move(dataset);
  data.dropout = true;
  return {config, std::move(data)};
}

DataState state_after(const TrainingData& data, int64_t step) {
  return {.cursor = data.cursor_after(Step(step)),
          .sequences = data.sequence_count(),
          .fingerprint = data.fingerprint()};
}

using Content = std::vector<std::vector<int64_t>>;  // tokens, positions, targets, starts, keys

Content content_of(const Batch& batch) {
  return {batch.tokens(), batch.positions(), batch.targets(), batch.document_starts,
          batch.columns.get<kDropoutKeyColumn>()};
}

// Returns the step's micro-batches, each from the rank that computes it.
std::vector<Content> step_on_ranks(const TrainingData& data, Step step, int32_t ranks) {
  const StepBatches whole = data.step_batches(step, {});
  std::vector<Content> all(whole.micro_batches.size());
  size_t taken = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const StepBatches batches = data.step_batches(step, {Rank(rank), ranks});
    EXPECT_EQ(batches.micro_batch_count, std::ssize(whole.micro_batches));
    const std::vector<Batch>& own = batches.micro_batches;
    for (size_t k = 0; k < own.size(); ++k) {
      all.at(static_cast<size_t>(rank) + k * static_cast<size_t>(ranks)) = content_of(own[k]);
      ++taken;
    }
  }
  EXPECT_EQ(taken, whole.micro_batches.size()) << "each micro-batch belongs to one rank";
  return all;
}

// Batches are equal at any number of ranks and after a resume at any step.
TEST(TrainingData, GivesTheSameBatchesAtAnyNumberOfRanksAndAfterAResumeAtAnyStep) {
  const TrainingData unbroken = make_data();
  std::vector<std::vector<Content>> wanted;
  for (int64_t step = 1; step <= kSteps; ++step) {
    wanted.push_back(step_on_ranks(unbroken, Step(step), 1));
    ASSERT_EQ(wanted.back().size(), 4u);
  }
  EXPECT_NE(wanted[0], wanted[1]);
  for (int64_t stop = 0; stop < kSteps; ++stop) {
    TrainingData resumed = make_data();
    EXPECT_EQ(resumed.resume_at(Step(stop), state_after(unbroken, stop), "here"), "");
    for (const int32_t ranks : {1, 2, 4, 8}) {
      for (int64_t step = stop + 1; step <= kSteps; ++step) {
        ASSERT_EQ(step_on_ranks(resumed, Step(step), ranks), wanted[static_cast<size_t>(step - 1)])
            << ranks << " ranks, stopped after " << stop << ", step " << step;
      }
      EXPECT_EQ(resumed.cursor_after(Step(kSteps)), unbroken.cursor_after(Step(kSteps)));
    }
  }
}

// Makes a run's data of `epochs` epochs, resumed after `step` steps at `before`'s position.
TrainingData resumed_for(double epochs, RunConfig config, const TrainingData& before,
                         int64_t step) {
  config.train.steps = 0;
  config.train.epochs = epochs;
  TrainingData data = make_data(config);
  data.resume_at(Step(step), state_after(before, step), "here");
  return data;
}

// Goal: the position in the data decides how much is left, not earlier steps under new keys.
TEST(RunData, ResumingWithOtherKeysTrainsTheEpochsThatAreLeft) {
  RunConfig config = make_config();
  config.train.steps = 0;
  config.train.epochs = 2;
  config.train.sequences_per_step = 4;
  const TrainingData before = make_data(config);
  const int64_t done = before.total_steps();
  const auto expect_end = [&](const TrainingData& data, double epochs) {
    const Step last(data.total_steps());
    EXPECT_GE(data.epochs_after(last), epochs);
    EXPECT_LT(data.epochs_after(Step(last.value - 1)), epochs) << "no step more than needed";
  };
  expect_end(before, 2.0);
  RunConfig smaller = config;
  smaller.train.sequences_per_step = 2;
  expect_end(resumed_for(3.0, smaller, before, done), 3.0);
  RunConfig larger = config;
  larger.train.sequences_per_step = 8;
  expect_end(resumed_for(4.0, larger, before, done), 4.0);
  RunConfig longer = config;
  longer.data.max_tokens = 40;
  expect_end(resumed_for(5.0, longer, before, done), 5.0);
  EXPECT_EQ(resumed_for(2.0, config, before, done).total_steps(), done) << "nothing is left";
  EXPECT_EQ(resumed_for(1.0, config, before, done).total_steps(), done) << "nor less than nothing";
  EXPECT_EQ(resumed_for(7.0, config, before, 3).total_steps(),
            resumed_for(7.0, config, before, 0).total_steps())
      << "the same keys: the same end";
}

// With other sequences a run resumes at the same share of the epoch, with a message.
TEST(RunData, OtherSequencesGoOnAtTheSameShareOfTheEpochAndSaySo) {
  const TrainingData before = make_data();
  RunConfig config = make_config();
  config.data.max_tokens = 40;
  TrainingData after = make_data(config);
  ASSERT_LT(after.sequence_count(), before.sequence_count());
  const std::string note = after.resume_at(Step(2), state_after(before, 2), "here");
  EXPECT_NE(note.find(std::to_string(before.sequence_count())), std::string::npos) << note;
  EXPECT_NEAR(after.epochs_after(Step(2)), before.epochs_after(Step(2)),
              1.0 / static_cast<double>(after.sequence_count()));
}

// A position outside the data is refused.
TEST(RunData, RefusesAPlaceOutsideTheData) {
  TrainingData data = make_data();
  const int64_t sequences = data.sequence_count();
  const auto refused = [&](int64_t epoch, int64_t position) {
    EXPECT_THROW(data.resume_at(Step(3), {.cursor = {5, epoch, position}}, "here"), CheckpointError)
        << epoch << " " << position;
  };
  refused(0, sequences);
  refused(0, kMostSteps);
  refused(kMostSteps, 0);
}

}  // namespace
}  // namespace longshore
