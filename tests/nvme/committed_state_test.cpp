// Committed state that is damaged, or another rank's.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/quiet_log.h"
#include "nvme/store/nvme_store.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

// OtherHistory: two ranks with the same commits, but the other's `differs` is of another history.
class OtherHistory final : public Agreement {
 public:
  explicit OtherHistory(int64_t differs) : differs_(differs) {}
  Outcome reduce(const Ballot& mine) override {
    Outcome outcome{mine, mine};
    if (!recovered_ && mine[0] == differs_) ++outcome.greatest[1];  // sequence, digest
    recovered_ = recovered_ || mine[0] < differs_;
    return outcome;
  }

 private:
  int64_t differs_;
  bool recovered_ = false;
};

class CommittedState : public testing::Test {
 protected:
  // Runs steps 0 to `last` and commits each.
  void run(SimDrives& drives, int64_t last, uint64_t random = 7) {
    NvmeStore store(layouts_, options_, drives.maker(), &pool_);
    store.start(solo_, random);
    for (int64_t step = 0; step <= last; ++step) {
      write_step(store, layouts_, step);
      store.commit({step, "note"}, solo_);
    }
  }
  // Returns the step that a start finds, or its error.
  std::string start(SimDrives& drives) {
    NvmeStore store(layouts_, options_, drives.maker(), &pool_);
    try {
      const auto& point = store.start(solo_, 9);
      if (!point) return "nothing";
      const std::string wrong = difference(store, layouts_, point->step);
      return "step " + std::to_string(point->step) + (wrong.empty() ? "" : ": " + wrong);
    } catch (const CheckpointError& error) {
      return error.what();
    }
  }
  StripeMap map() const { return NvmeStore::make_map(layouts_, options_); }
  // Flips a bit of a part's bytes in one slot.
  void damage(SimDrives& drives, int slot) {
    const StripeMap stripes = map();
    for (const ChunkPlace& chunk : stripes.chunks()) {
      if (!stripes.part(chunk.part).versioned) continue;
      drives.media[static_cast<size_t>(chunk.drive)]->flip_bit(
          chunk.offsets[static_cast<size_t>(slot)] + 9, 2);
      return;
    }
  }

  const QuietLog quiet_;
  WorkerPool pool_{1};
  SoloAgreement solo_;
  std::vector<FlatLayout> layouts_ =
      make_layouts(fakes::make_small_model(1, false), 1, DType::kBF16);
  NvmeStoreOptions options_ = small_store({}, true, 2);
};

// Goal: parameters of several blocks of 2^18 elements are converted right, from both tiers.
TEST_F(CommittedState, HoldsUnitsOfSeveralBlocks) {
  ModelSpec model = fakes::make_small_model(1, false);
  model.units[1].parameters.push_back(fakes::make_parameter("block.0.wide", {1031, 601}));
  for (const StateOptions& state : all_state_options()) {
    layouts_ = make_layouts(model, 1, state.compute);
    for (const bool on_drives : {false, true}) {
      options_ = small_store(state, on_drives, 1);
      options_.geometry.chunk_bytes = 256 * kBlockBytes;
      SimDrives drives;
      run(drives, 1);
      EXPECT_EQ(start(drives), "step 1");
    }
  }
}

// With a damaged newest version a start finds the version before.
TEST_F(CommittedState, GoesBackToTheVersionBefore) {
  SimDrives drives;
  run(drives, 3);
  EXPECT_EQ(start(drives), "step 3");
  damage(drives, 3 % 2);
  EXPECT_EQ(start(drives), "step 2");
}

// Goal: commits with one number but different histories, as after a drive was restored from a copy,
// are not mixed: the commit before is taken.
TEST_F(CommittedState, IsOfOneHistoryOnAllRanks) {
  SimDrives drives;
  run(drives, 3);
  NvmeStore store(layouts_, options_, drives.maker(), &pool_);
  OtherHistory ranks(3);
  const auto& point = store.start(ranks, 9);
  ASSERT_TRUE(point.has_value());
  EXPECT_EQ(point->step, 2);
  EXPECT_EQ(difference(store, layouts_, 2), "");
}

// Goal: a start checks every chunk, not only the first of those that are read together.
TEST_F(CommittedState, IsCheckedChunkByChunk) {
  SimDrives drives;
  run(drives, 3);
  std::vector<std::vector<std::byte>> whole;
  for (const auto& medium : drives.media) whole.push_back(medium->now());
  const StripeMap stripes = map();
  int64_t damaged = 0;
  for (const ChunkPlace& chunk : stripes.chunks()) {
    if (!stripes.part(chunk.part).versioned) continue;
    for (size_t drive = 0; drive < whole.size(); ++drive) {
      drives.media[drive] = std::make_unique<SimMedium>(std::vector<std::byte>(whole[drive]));
    }
    drives.media[static_cast<size_t>(chunk.drive)]->flip_bit(chunk.offsets[3 % 2] + chunk.bytes / 2,
                                                             2);
    ASSERT_EQ(start(drives), "step 2") << stripes.part(chunk.part).name << ", chunk " << damaged;
    ++damaged;
  }
  EXPECT_GT(damaged, 2);
}

// Goal: committed state without a whole version is not taken for a fresh start, which would
// overwrite it; damaged files may still be restored.
TEST_F(CommittedState, IsNeverTakenForNothing) {
  for (const int64_t last : {int64_t{0}, int64_t{1}, int64_t{4}}) {
    SimDrives drives;
    run(drives, last);
    damage(drives, 0);
    if (last > 0) damage(drives, 1);
    const std::vector<std::byte> before = drives.media[0]->now();
    for (int i = 0; i < 2; ++i) {
      EXPECT_NE(start(drives).find("cannot be recovered"), std::string::npos) << start(drives);
    }
    EXPECT_TRUE(drives.media[0]->now() == before) << "a refusal writes nothing";
    damage(drives, 0);
    if (last > 0) damage(drives, 1);
    EXPECT_EQ(start(drives), "step " + std::to_string(last)) << "the same bit once more";
  }
}

// Goal: a rank refuses another rank's files even if contents and history are equal.
TEST_F(CommittedState, IsBoundToItsRank) {
  SimDrives first, second;
  options_.ranks = 2;
  run(first, 2);
  options_.rank = 1;
  run(second, 2);
  EXPECT_EQ(start(second), "step 2");
  SimDrives mixed;
  run(mixed, 2);
  for (size_t drive = 0; drive < mixed.media.size(); ++drive) {
    std::vector<std::byte> bytes = first.media[drive]->now();
    std::copy_n(second.media[drive]->now().begin(), kManifestAreaBytes, bytes.begin());
    mixed.media[drive] = std::make_unique<SimMedium>(std::move(bytes));
  }
  EXPECT_NE(start(mixed).find("cannot be recovered"), std::string::npos);
}

}  // namespace
}  // namespace longshore
