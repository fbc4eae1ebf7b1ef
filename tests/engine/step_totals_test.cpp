// StepTotals: the totals of one rank's step and their sum over ranks.
#include "offload/engine/step_totals.h"

#include <gtest/gtest.h>

#include "comm/operations/communicator.h"

namespace longshore {
namespace {

// Exchanged: a communicator that records this rank's values and adds those of the other rank.
class Exchanged : public SoloCommunicator {
 public:
  explicit Exchanged(std::vector<double> theirs) : SoloCommunicator("all"), theirs(theirs) {}
  Completion start(const Collective& collective) override {
    const std::span<double> values = collective.as<double>()[0];
    given.assign(values.begin(), values.end());
    for (size_t i = 0; i < theirs.size(); ++i) values[i] += theirs[i];
    return {};
  }

  std::vector<double> theirs, given = {};
};

StepTotals totals_of(int32_t rank) {
  const double own = rank + 1;
  return {.loss = {.loss = 10.0 * own,
                   .trained = 100 * (rank + 1),
                   .tokens = {.hits = 3 * (rank + 1), .compared = 7 * (rank + 1)}},
          .unit_squares = {own, 0.5 * own, 0.0},
          .stop = rank == 1,
          .times = {{own, 2.0 * own, 3.0 * own, 4.0 * own}}};
}

// Returns rank 0's totals of two ranks.
StepTotals of_two(const ShardTopology& topology) {
  Exchanged theirs({});
  sum_over_ranks({.topology = topology, .rank = Rank(1), .all = &theirs}, totals_of(1));
  Exchanged own(theirs.given);
  return sum_over_ranks({.topology = topology, .rank = Rank(0), .all = &own}, totals_of(0));
}

// Goal: gradients are clipped by the norm over all shards, not by that of one rank's shard.
TEST(StepTotals, AddUpWhatTheShardsHold) {
  const StepTotals totals = of_two({.ranks = 2, .shard_ranks = 2});
  EXPECT_EQ(totals.loss.loss, 30.0);
  EXPECT_EQ(totals.loss.trained, 300);
  EXPECT_EQ(totals.loss.tokens.hits, 9);
  EXPECT_EQ(totals.loss.tokens.compared, 21);
  EXPECT_EQ(totals.unit_squares, (std::vector<double>{3.0, 1.5, 0.0}));
  EXPECT_TRUE(totals.stop) << "one rank's wish is everybody's";
  EXPECT_FALSE(totals.save);
  ASSERT_EQ(totals.times.size(), 2u);
  EXPECT_EQ(totals.times[0].computed, 4.0);
  EXPECT_EQ(totals.times[1].seconds, 2.0);
  EXPECT_EQ(totals.times[1].waited, 4.0);
}

// Goal: equal copies of a gradient count once, so replicas clip by the norm of one rank.
TEST(StepTotals, CountReplicasOnce) {
  const StepTotals totals = of_two({.ranks = 2, .shard_ranks = 1});
  EXPECT_EQ(totals.unit_squares, (std::vector<double>{1.0, 0.5, 0.0}));
  EXPECT_EQ(totals.loss.loss, 30.0) << "of different rows";
}

// Goal: the slowest rank is the one that waits least.
TEST(StepTotals, NameWhoIsWaitedFor) {
  const SlowestRank slowest = slowest_of({{.seconds = 9.0, .waited = 5.0, .computed = 3.0},
                                          {.seconds = 9.0, .waited = 1.0, .updated = 7.0},
                                          {.seconds = 9.0, .waited = 2.0, .computed = 8.0}});
  EXPECT_EQ(slowest.rank, Rank(1));
  EXPECT_EQ(slowest.resource, "optimizer");
  EXPECT_EQ(slowest.seconds, 7.0);
}

}  // namespace
}  // namespace longshore
