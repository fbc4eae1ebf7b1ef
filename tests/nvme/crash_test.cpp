// A crash at any moment recovers to an acknowledged version or a newer one, whole and the same on
// all ranks; and each rule of the protocol is needed.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/fakes/sanitizer.h"
#include "tests/nvme/crash_model.h"

namespace longshore {
namespace {

void expect_nothing_lost(const CrashOptions& options, int64_t at_least) {
  const CrashReport report = enumerate_crashes(options);
  EXPECT_EQ(report.lost, 0) << report.first;
  EXPECT_EQ(report.corrupt, 0) << report.first;
  EXPECT_GE(report.states, at_least);
  std::printf("%lld crash states in %lld lives: %lld lost, %lld corrupt\n",
              static_cast<long long>(report.states), static_cast<long long>(report.lives),
              static_cast<long long>(report.lost), static_cast<long long>(report.corrupt));
}

CrashReport with_mutation(Mutation mutation, int ranks) {
  return enumerate_crashes({.ranks = ranks,
                            .depth = 2,
                            .subsets = ranks == 1 ? 20 : 4,
                            .next_life_every = ranks == 1 ? 40 : 500,
                            .seed = 3,
                            .mutation = mutation});
}

// One rank loses nothing in any crash. LongCrash runs ten times as many states; sanitizers run few,
// because each costs many times as much.
TEST(Crash, OneRankLosesNothing) {
  if (kSanitized) {
    expect_nothing_lost({.ranks = 1, .depth = 0, .subsets = 6, .next_life_every = 75}, 100);
    return;
  }
  expect_nothing_lost({.ranks = 1, .depth = 4, .subsets = 42, .next_life_every = 105}, 150'000);
}

// Two ranks lose nothing in any crash and never mix versions.
TEST(Crash, TwoRanksLoseNothingAndNeverMix) {
  if (kSanitized) {
    expect_nothing_lost({.ranks = 2, .depth = 0, .subsets = 3, .next_life_every = 500}, 100);
    return;
  }
  expect_nothing_lost({.ranks = 2, .depth = 3, .subsets = 12, .next_life_every = 500}, 80'000);
}

// A rank with two drives loses nothing in any crash.
TEST(Crash, TwoDrivesOfARankLoseNothing) {
  expect_nothing_lost({.ranks = 1, .drives = 2, .subsets = 10, .next_life_every = 400}, 100);
}

// Goal: a missing flush after the manifest is found.
TEST(Crash, NoticesAMissingFlushAfterTheManifest) {
  EXPECT_GT(with_mutation(Mutation::kNoFlushAfterManifest, 1).lost, 0);
}
// A single manifest is found to lose versions.
TEST(Crash, NoticesASingleManifest) {
  EXPECT_GT(with_mutation(Mutation::kSingleManifest, 1).lost, 0);
}
// State overwritten in place is found to lose versions.
TEST(Crash, NoticesStateOverwrittenInPlace) {
  EXPECT_GT(with_mutation(Mutation::kInPlaceSlot, 1).lost, 0);
}
// An early acknowledgement is found to lose versions.
TEST(Crash, NoticesAnEarlyAcknowledgement) {
  EXPECT_GT(with_mutation(Mutation::kAcknowledgeEarly, 1).lost, 0);
}
// Missing checksums are found to accept corrupt bytes.
TEST(Crash, NoticesMissingChecksums) {
  EXPECT_GT(with_mutation(Mutation::kNoChecksum, 1).corrupt, 0);
}
// A start without a flush is found to lose versions.
TEST(Crash, NoticesAStartThatDoesNotFlush) {
  EXPECT_GT(with_mutation(Mutation::kNoFlushAtStart, 1).lost, 0);
}
// Missing incarnations are found to mix histories.
TEST(Crash, NoticesMixedHistories) {
  EXPECT_GT(with_mutation(Mutation::kNoIncarnation, 2).corrupt, 0);
}

// Goal: checksums alone suffice without the first flush.
TEST(Crash, ChecksumsMakeTheFirstFlushRedundant) {
  const CrashReport report = with_mutation(Mutation::kNoFirstFlush, 1);
  EXPECT_EQ(report.corrupt, 0) << report.first;
}
// Voiding and incarnations each suffice to keep histories apart.
TEST(Crash, VoidingAndIncarnationsEachKeepHistoriesApart) {
  EXPECT_EQ(with_mutation(Mutation::kOnlyNoIncarnation, 2).corrupt, 0);
  EXPECT_EQ(with_mutation(Mutation::kOnlyNoVoid, 2).corrupt, 0);
}

// Three million crash states lose nothing; this takes a night.
TEST(LongCrash, ThreeMillionStates) {
  expect_nothing_lost({.ranks = 1, .depth = 4, .subsets = 60, .next_life_every = 90}, 2'000'000);
  expect_nothing_lost({.ranks = 2, .depth = 3, .subsets = 40, .next_life_every = 700}, 1'000'000);
}

}  // namespace
}  // namespace longshore
