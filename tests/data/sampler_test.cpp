#include "data/tokens/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace longshore {
namespace {

std::vector<int64_t> epoch_of(const Sampler& sampler, int64_t sequences, int64_t epoch) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < sequences; ++i) {
    order.push_back(sampler.sequence_at(epoch * sequences + i));
  }
  return order;
}

std::vector<int64_t> ascending(int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

// Every epoch takes every sequence once.
TEST(Sampler, TakesEverySequenceOncePerEpoch) {
  for (int64_t sequences = 1; sequences <= 300; ++sequences) {
    const Sampler sampler({.seed = 7, .sequences = sequences, .shuffle = true});
    for (int64_t epoch : {0, 1, 5}) {
      std::vector<int64_t> order = epoch_of(sampler, sequences, epoch);
      std::sort(order.begin(), order.end());
      ASSERT_EQ(order, ascending(sequences)) << sequences << " epoch " << epoch;
    }
  }
  for (int64_t sequences : {1023, 1024, 1025, 4096, 4097, 50'000, 65'537}) {
    const Sampler sampler({.seed = 7, .sequences = sequences, .shuffle = true});
    std::vector<int64_t> order = epoch_of(sampler, sequences, 3);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order, ascending(sequences)) << sequences;
  }
}

// Without shuffle the order is that of the file, again and again.
TEST(Sampler, WithoutShuffleGoesInFileOrderAndWrapsAround) {
  const Sampler sampler({.seed = 1, .sequences = 3, .shuffle = false});
  for (int64_t sample = 0; sample < 10; ++sample) {
    EXPECT_EQ(sampler.sequence_at(sample), sample % 3);
  }
}

// Every epoch and every seed has an order of its own.
TEST(Sampler, OrdersEveryEpochAndEverySeedInAnotherWay) {
  const Sampler one({.seed = 1, .sequences = 100, .shuffle = true});
  const Sampler other({.seed = uint64_t{1} << 32, .sequences = 100, .shuffle = true});
  EXPECT_NE(epoch_of(one, 100, 0), epoch_of(one, 100, 1));
  EXPECT_NE(epoch_of(one, 100, 0), epoch_of(other, 100, 0));
  EXPECT_NE(epoch_of(one, 100, 0), ascending(100));
}

// The order for a seed is fixed, because runs of other builds and versions must see the same data.
TEST(Sampler, KeepsTheOrderThatRunsAlreadyHave) {
  const Sampler sampler({.seed = 42, .sequences = 10, .shuffle = true});
  EXPECT_EQ(epoch_of(sampler, 10, 0), (std::vector<int64_t>{6, 3, 2, 1, 9, 7, 0, 8, 4, 5}));
  EXPECT_EQ(epoch_of(sampler, 10, 1), (std::vector<int64_t>{2, 8, 4, 7, 5, 9, 3, 6, 0, 1}));
}

// A run that resumes at any sample continues in the order of an unbroken one.
TEST(Sampler, ResumesFromAnyPositionAsIfNeverStopped) {
  constexpr int64_t kSequences = 37, kSamples = 200;
  const SamplerOptions options{.seed = 9, .sequences = kSequences, .shuffle = true};
  std::vector<int64_t> unbroken;
  for (int64_t n = 0; n < kSamples; ++n) unbroken.push_back(Sampler(options).sequence_at(n));
  for (int64_t stop = 0; stop < kSamples; ++stop) {
    const DataCursor saved = Sampler(options).cursor_after(stop);
    EXPECT_LT(saved.position, kSequences);
    const Sampler resumed(options);
    std::vector<int64_t> order(unbroken.begin(), unbroken.begin() + stop);
    for (int64_t n = resumed.samples_before(saved); n < kSamples; ++n) {
      order.push_back(resumed.sequence_at(n));
    }
    ASSERT_EQ(order, unbroken) << "stopped after " << stop;
  }
}

// A sequence is at every position equally often: 16 positions and 4,000 epochs give 250 each;
// chi-square with 15 degrees of freedom exceeds 50 once in 100,000 times.
TEST(Sampler, PutsASequenceAtEveryPositionEquallyOften) {
  constexpr int64_t kSequences = 16, kEpochs = 4000;
  const Sampler sampler({.seed = 3, .sequences = kSequences, .shuffle = true});
  for (int64_t position : {int64_t{0}, int64_t{7}, kSequences - 1}) {
    std::vector<double> counts(kSequences, 0.0);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      ++counts[static_cast<size_t>(sampler.sequence_at(epoch * kSequences + position))];
    }
    const double expected = static_cast<double>(kEpochs) / kSequences;
    double chi_square = 0.0;
    for (double count : counts) chi_square += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_square, 50.0) << position;
  }
}

// steps_for() rounds up to whole steps that cover the epochs.
TEST(Sampler, CountsStepsThatSeeTheAskedEpochs) {
  const Sampler sampler({.seed = 0, .sequences = 10, .shuffle = true});
  EXPECT_EQ(sampler.steps_for(1.0, 5), 2);
  EXPECT_EQ(sampler.steps_for(1.0, 4), 3);
  EXPECT_EQ(sampler.steps_for(3.0, 10), 3);
  EXPECT_EQ(sampler.steps_for(0.1, 1), 1);
  EXPECT_EQ(sampler.steps_for(0.3, 1), 3);
  EXPECT_EQ(sampler.steps_for(0.001, 8), 1);
  EXPECT_EQ(sampler.steps_for(3.0, 10, 10), 2) << "what was seen is not seen again";
  EXPECT_EQ(sampler.steps_for(2.0, 4, 7), 4);
  EXPECT_EQ(sampler.steps_for(1.0, 5, 25), 0);
  EXPECT_DOUBLE_EQ(sampler.epochs_in(15), 1.5);
}

// A permutation of more than 2^40 indices works without a table and repeats no index.
TEST(IndexPermutation, ReachesLargeSetsWithoutMemory) {
  const int64_t count = (int64_t{1} << 40) + 12345;
  const IndexPermutation permutation(count, 1, IndexPermutation::Purpose::kSampleOrder, 0);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 1000; ++i) values.push_back(permutation(i));
  for (int64_t value : values) EXPECT_TRUE(value >= 0 && value < count);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
  EXPECT_GT(values.back(), count / 2);
}

// Permutations for different purposes differ under one seed.
TEST(IndexPermutation, DiffersByPurpose) {
  const IndexPermutation samples(1000, 1, IndexPermutation::Purpose::kSampleOrder, 0);
  const IndexPermutation packing(1000, 1, IndexPermutation::Purpose::kPackingOrder, 0);
  int64_t equal = 0;
  for (int64_t i = 0; i < 1000; ++i) equal += samples(i) == packing(i);
  EXPECT_LT(equal, 20);
}

}  // namespace
}  // namespace longshore
