// One version on the drives: nothing is durable, nothing is used unverified, and no start takes
// these files for committed state or overwrites committed state.
#include <gtest/gtest.h>

#include <cerrno>

#include "base/quiet_log.h"
#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/scratch_file.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

NvmeStoreOptions one_version(const StateOptions& state, bool parameters_on_drives, int drives) {
  NvmeStoreOptions options = small_store(state, parameters_on_drives, drives);
  options.versions = 1;
  return options;
}

class NvmeOneVersion : public testing::Test {
 protected:
  WorkerPool pool_{2};
  SoloAgreement solo_;

 private:
  QuietLog quiet_;
};

// Goal: written bytes read back in every format, a step moves the planned bytes, and frozen
// parameters are written once.
TEST_F(NvmeOneVersion, HoldsWhatWasWritten) {
  for (const StateOptions& state : all_state_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 2, state.compute);
    for (const bool on_drives : {false, true}) {
      SimDrives sim;
      sim.injectors = {harmless_faults(1, 0.2), harmless_faults(2, 0.2), harmless_faults(3, 0.2)};
      const NvmeStoreOptions options = one_version(state, on_drives, 3);
      NvmeStore store(layouts, options, sim.maker(), &pool_);
      ASSERT_FALSE(store.start(solo_, 1));
      for (int64_t step = 0; step < 4; ++step) {
        const Bytes before = store.traffic().written;
        write_step(store, layouts, step);
        store.commit({step, ""}, solo_);
        EXPECT_FALSE(store.committed());
        ASSERT_EQ(difference(store, layouts, step), "");
        if (step == 0) continue;
        EXPECT_EQ(store.traffic().written - before, planned_update(layouts, options).written);
      }
    }
  }
}

// Goal: bytes that change on the drive between write and read are found, at any offset.
TEST_F(NvmeOneVersion, FindsFlippedBitsBeforeUse) {
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  SimRandom random(4);
  for (const bool on_drives : {false, true}) {
    const NvmeStoreOptions options = one_version({}, on_drives, 1);
    const StripeMap map = NvmeStore::make_map(layouts, options);
    for (const ChunkPlace& chunk : map.chunks()) {
      // Parameters in host memory are not read back.
      const bool parameters = map.part(chunk.part).name.find("parameters") != std::string::npos;
      if (parameters && !on_drives) continue;
      SimDrives sim;
      NvmeStore store(layouts, options, sim.maker(), &pool_);
      store.start(solo_, 1);
      write_step(store, layouts, 0);
      write_step(store, layouts, 1);
      store.commit({1, ""}, solo_);
      const Bytes place =
          chunk.offsets[0] + static_cast<Bytes>(random.below(static_cast<uint64_t>(chunk.bytes)));
      const auto bit = static_cast<int>(random.below(8));
      sim.media[0]->flip_bit(place, bit);
      try {
        difference(store, layouts, 1);
        ADD_FAILURE() << "bit " << bit << " of byte " << place << " was used";
      } catch (const CorruptStateError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("sim0: "), std::string::npos) << text;
        EXPECT_NE(text.find("at offset " + std::to_string(chunk.offsets[0])), std::string::npos)
            << text;
        EXPECT_NE(text.find("newest checkpoint"), std::string::npos) << text;
      }
      sim.media[0]->flip_bit(place, bit);
      ASSERT_EQ(difference(store, layouts, 1), "");
    }
  }
}

// Goal: with any fault at any operation a step has its bits or ends in an error.
TEST_F(NvmeOneVersion, FaultsAtEveryOperationEndInBitsOrErrors) {
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  using Kind = SimFault::Kind;
  const std::vector<SimFault> faults = {{.kind = Kind::kError, .error_number = EIO},
                                        {.kind = Kind::kError, .error_number = EAGAIN},
                                        {.kind = Kind::kShort, .bytes = 512},
                                        {.kind = Kind::kStale},
                                        {.kind = Kind::kBitFlip},
                                        {.kind = Kind::kMisdirect, .shift = 4096},
                                        {.kind = Kind::kLost}};
  int ended = 0;
  for (const SimFault& fault : faults) {
    for (int64_t n = 0;; ++n) {
      SimDrives sim;
      bool reached = false;
      sim.injectors = {[&](int64_t index, const BlockOp&) -> std::optional<SimFault> {
        if (index != n) return std::nullopt;
        reached = true;
        return fault;
      }};
      try {
        NvmeStore store(layouts, one_version({}, true, 1), sim.maker(), &pool_);
        store.start(solo_, 1);
        for (int64_t step = 0; step < 3; ++step) {
          write_step(store, layouts, step);
          store.commit({step, ""}, solo_);
          ASSERT_EQ(difference(store, layouts, step), "") << "fault at " << n;
        }
      } catch (const Error&) {
        ++ended;
      }
      if (!reached) break;
    }
  }
  EXPECT_GT(ended, 20);
}

// Goal: a failed write ends the run at the next commit with the reason.
TEST_F(NvmeOneVersion, AFailedWriteIsThrown) {
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  SimDrives sim;
  bool broken = false;
  sim.injectors = {[&](int64_t, const BlockOp& op) -> std::optional<SimFault> {
    if (!broken || op.kind != BlockOp::Kind::kWrite) return std::nullopt;
    return SimFault{.kind = SimFault::Kind::kError, .error_number = ENOSPC};
  }};
  NvmeStore store(layouts, one_version({}, false, 1), sim.maker(), &pool_);
  store.start(solo_, 1);
  write_step(store, layouts, 0);
  store.commit({0, ""}, solo_);
  broken = true;
  write_step(store, layouts, 1);
  try {
    store.commit({1, ""}, solo_);
    FAIL() << "nobody noticed";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("could not be written"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("newest checkpoint"), std::string::npos);
  }
}

void expect_refused(NvmeStore& store, const char* why) {
  SoloAgreement solo;
  try {
    store.start(solo, 3);
    FAIL() << "not refused: " << why;
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

// Goal: the files name their run from the start and never hold a version.
TEST_F(NvmeOneVersion, ItsFilesAreTheRunsAndHoldNoVersion) {
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  const NvmeStoreOptions options = one_version({}, false, 1);
  for (const bool trained : {false, true}) {
    SimDrives sim;
    {
      NvmeStore store(layouts, options, sim.maker(), &pool_);
      store.start(solo_, 1);
      for (int64_t step = 0; trained && step < 3; ++step) {
        write_step(store, layouts, step);
        store.commit({step, ""}, solo_);
      }
    }
    NvmeStoreOptions other = options;
    other.run = {{7, 7}};
    {
      NvmeStore store(layouts, other, sim.maker(), &pool_);
      expect_refused(store, "another run");
    }
    NvmeStore again(layouts, options, sim.maker(), &pool_);
    EXPECT_FALSE(again.start(solo_, 2)) << "nothing to go on from";
    write_step(again, layouts, 0);
    EXPECT_EQ(difference(again, layouts, 0), "");
  }
}

// Goal: each mode refuses the other mode's files and leaves them unchanged.
TEST_F(NvmeOneVersion, NeitherModeTakesTheOthersFiles) {
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  for (const int written_with : {1, 2}) {
    const ScratchDirectory directory;
    StateFileOptions files;
    files.directories = {directory.file("drive")};
    const auto make = [&](const StripeMap& map, std::span<std::byte> window) {
      return open_state_files(files, map, window);
    };
    NvmeStoreOptions options = small_store({}, false, 1);
    options.versions = written_with;
    {
      NvmeStore store(layouts, options, make, &pool_);
      store.start(solo_, 1);
      for (int64_t step = 0; step < 3; ++step) {
        write_step(store, layouts, step);
        store.commit({step, ""}, solo_);
      }
    }
    const auto manifest = read_state_file(files.directories.front(), 0).manifest;
    ASSERT_TRUE(manifest);
    EXPECT_EQ(manifest->point.step, written_with == 1 ? kNoStep : 2);
    NvmeStoreOptions other = options;
    other.versions = 3 - written_with;
    {
      NvmeStore store(layouts, other, make, &pool_);
      expect_refused(store, "offload.nvme_versions");
    }
    NvmeStore store(layouts, options, make, &pool_);
    EXPECT_EQ(store.start(solo_, 4).has_value(), written_with == 2);
    if (written_with == 2) {
      EXPECT_EQ(difference(store, layouts, 2), "");
    }
  }
}

}  // namespace
}  // namespace longshore
