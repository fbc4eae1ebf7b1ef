// Missing manifests where other drives have commits, and foreign files at the path of a state file.
// Goal: neither is taken for an empty drive.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/quiet_log.h"
#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

class LostManifests : public testing::Test {
 protected:
  // Runs steps 0 to `last` and commits each.
  void run(SimDrives& drives, int64_t last) {
    NvmeStore store(layouts_, options_, drives.maker(), &pool_);
    store.start(solo_, 7);
    for (int64_t step = 0; step <= last; ++step) {
      write_step(store, layouts_, step);
      store.commit({step, "note"}, solo_);
    }
  }
  // Empties a drive, as if it was exchanged or its file was made again.
  static void empty(SimDrives& drives, size_t drive) {
    drives.media[drive] = std::make_unique<SimMedium>(
        std::vector<std::byte>(drives.media[drive]->now().size(), std::byte{0}));
  }
  std::optional<DurablePoint> start(SimDrives& drives) {
    NvmeStore store(layouts_, options_, drives.maker(), &pool_);
    return store.start(solo_, 9);
  }

  const QuietLog quiet_;
  WorkerPool pool_{1};
  SoloAgreement solo_;
  const std::vector<FlatLayout> layouts_ =
      make_layouts(fakes::make_small_model(1, false), 1, DType::kBF16);
  const NvmeStoreOptions options_ = small_store({}, true, 2);
};

// The missing manifests of one drive are detected by the other.
TEST_F(LostManifests, OfOneDriveAreNoticedByTheOther) {
  for (const size_t drive : {size_t{0}, size_t{1}}) {
    for (const int64_t last : {int64_t{1}, int64_t{4}}) {
      SimDrives drives;
      run(drives, last);
      empty(drives, drive);
      const std::vector<std::byte> other = drives.media[1 - drive]->now();
      EXPECT_THROW(start(drives), CheckpointError) << "drive " << drive << ", step " << last;
      EXPECT_TRUE(drives.media[1 - drive]->now() == other) << "a refusal writes nothing";
    }
  }
}

// A first commit on one drive only is no loss, because nothing was acknowledged yet.
TEST_F(LostManifests, OfTheFirstCommitAreNoLoss) {
  SimDrives drives;
  run(drives, 0);
  empty(drives, 1);
  EXPECT_FALSE(start(drives));
}

class StateFileContents : public testing::Test {
 protected:
  StateFileContents() {
    std::string pattern = (std::filesystem::temp_directory_path() / "contents_XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~StateFileContents() override { remove_tree(directory_); }

  void put(const std::string& bytes) const {
    std::ofstream(state_file_path(directory_, 0), std::ios::binary) << bytes;
  }
  StateFileContent look() const { return read_state_file(directory_, 0); }
  // Returns a file of zeros with a manifest's block at one of its two offsets.
  static std::string with_block(const std::vector<std::byte>& block, Bytes at) {
    std::string bytes(static_cast<size_t>(2 * kManifestAreaBytes), '\0');
    bytes.replace(static_cast<size_t>(at), block.size(),
                  reinterpret_cast<const char*>(block.data()), block.size());
    return bytes;
  }
  static std::vector<std::byte> block_of(const RunKey& run, int64_t step = 3) {
    Manifest manifest;
    manifest.run = run;
    manifest.geometry.chunk_bytes = kBlockBytes;
    manifest.point.sequence = static_cast<uint64_t>(step);
    manifest.point.step = step;
    std::vector<std::byte> block(static_cast<size_t>(kBlockBytes));
    encode(manifest, block);
    return block;
  }

  std::string directory_;
};

// A file without a manifest is empty.
TEST_F(StateFileContents, AreNothingWhereNoManifestEverWas) {
  EXPECT_EQ(look().bytes, 0);
  put("");
  EXPECT_FALSE(look().unknown);
  put(std::string(static_cast<size_t>(2 * kManifestAreaBytes), '\0'));
  EXPECT_FALSE(look().unknown);
  EXPECT_FALSE(look().manifest);
}

// Contents that no run wrote are unknown.
TEST_F(StateFileContents, AreUnknownWhereNoRunWroteThem) {
  put("a user's notes");
  EXPECT_TRUE(look().unknown);
  put(std::string(static_cast<size_t>(2 * kManifestAreaBytes), 'x'));
  EXPECT_TRUE(look().unknown);
  EXPECT_FALSE(look().claimed);
}

// Goal: the newer of two commits is the file's content, at either offset.
TEST_F(StateFileContents, AreThoseOfTheNewerManifest) {
  for (const bool newer_is_first : {true, false}) {
    std::string bytes = with_block(block_of({{5, 6}}, newer_is_first ? 4 : 3), 0);
    const std::vector<std::byte> second = block_of({{5, 6}}, newer_is_first ? 3 : 4);
    bytes.replace(static_cast<size_t>(kManifestStride), second.size(),
                  reinterpret_cast<const char*>(second.data()), second.size());
    put(bytes);
    ASSERT_TRUE(look().manifest);
    EXPECT_EQ(look().manifest->point.step, 4);
  }
}

// A damaged block still names its run.
TEST_F(StateFileContents, NameTheRunOfABlockThatIsNotWhole) {
  const RunKey run{{5, 6}};
  std::vector<std::byte> block = block_of(run);
  put(with_block(block, kManifestStride));
  ASSERT_TRUE(look().manifest);
  EXPECT_EQ(look().manifest->point.step, 3);
  EXPECT_FALSE(look().unknown);
  block[300] ^= std::byte{1};
  put(with_block(block, 0));
  EXPECT_FALSE(look().manifest);
  EXPECT_TRUE(look().unknown);
  EXPECT_EQ(look().claimed, run);
}

}  // namespace
}  // namespace longshore
