// Manifests read back, and nothing else is read as one; stripes use no byte twice.
#include "nvme/commit/manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/hash.h"
#include "nvme/parts/stripe_map.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

Manifest sample() {
  Manifest manifest;
  manifest.run = {{11, 12}};
  manifest.rank = 3;
  manifest.ranks = 4;
  manifest.drive = 1;
  manifest.drives = 2;
  manifest.layout_hash = 77;
  manifest.table_root = 88;
  manifest.geometry.weights = {3, 1};
  manifest.point = {.sequence = 9,
                    .version = 7,
                    .incarnation = 5,
                    .data_incarnation = 4,
                    .step = 100,
                    .note = "{\"cursor\": 12}"};
  return manifest;
}

// A written manifest reads back.
TEST(Manifest, ReadsWhatWasWritten) {
  const BlockBuffer block(kBlockBytes);
  encode(sample(), block.bytes());
  const auto read = decode(block.bytes());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->run, sample().run);
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->ranks, 4);
  EXPECT_EQ(read->drive, 1);
  EXPECT_EQ(read->layout_hash, 77u);
  EXPECT_EQ(read->table_root, 88u);
  EXPECT_EQ(read->geometry, sample().geometry);
  EXPECT_EQ(read->point.note, sample().point.note);
  EXPECT_EQ(digest_of(read->point), digest_of(sample().point));
}

// Goal: a flip of any bit of the block is found.
TEST(Manifest, NoticesEveryFlippedBit) {
  const BlockBuffer block(kBlockBytes);
  encode(sample(), block.bytes());
  for (size_t i = 0; i < block.bytes().size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      block.bytes()[i] ^= static_cast<std::byte>(1 << bit);
      ASSERT_FALSE(decode(block.bytes())) << "byte " << i << " bit " << bit;
      block.bytes()[i] ^= static_cast<std::byte>(1 << bit);
    }
  }
}

// Goal: a block of another format version is not read.
TEST(Manifest, OfAnotherFormatIsNotRead) {
  const BlockBuffer block(kBlockBytes);
  encode(sample(), block.bytes());
  block.bytes()[8] ^= std::byte{2};
  const size_t checksum_at = block.bytes().size() - sizeof(uint64_t);
  const uint64_t checksum = hash64(block.bytes().first(checksum_at));
  std::memcpy(block.bytes().data() + checksum_at, &checksum, sizeof checksum);
  EXPECT_FALSE(decode(block.bytes()));
}

// Random bytes are not read as a manifest.
TEST(Manifest, IsNotFoundInNoise) {
  const BlockBuffer block(kBlockBytes);
  EXPECT_FALSE(decode(block.bytes()));
  EXPECT_FALSE(decode(block.bytes().first(100)));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    fill_random(block.bytes(), seed);
    EXPECT_FALSE(decode(block.bytes()));
  }
}

// The stripe map gives every chunk its own bytes.
TEST(StripeMap, GivesEveryChunkItsOwnBytes) {
  std::vector<PartSpec> parts;
  for (int i = 0; i < 9; ++i) {
    parts.push_back({"part " + std::to_string(i), (i * 5 % 7) * kBlockBytes, i % 3 != 0});
  }
  for (int drives = 1; drives <= 3; ++drives) {
    Geometry geometry{.chunk_bytes = 2 * kBlockBytes, .weights = {2, 1, 3}};
    const StripeMap map(parts, geometry, drives);
    std::vector<std::map<Bytes, Bytes>> used(static_cast<size_t>(drives));
    const auto take = [&](int drive, Bytes from, Bytes bytes) {
      ASSERT_LE(from + bytes, map.file_bytes(drive));
      for (const auto& [begin, end] : used[static_cast<size_t>(drive)]) {
        ASSERT_TRUE(from >= end || from + bytes <= begin) << "drive " << drive << " at " << from;
      }
      used[static_cast<size_t>(drive)][from] = from + bytes;
    };
    for (int drive = 0; drive < drives; ++drive) {
      take(drive, 0, kManifestAreaBytes);
      for (int slot : {0, 1}) take(drive, map.table_offset(drive, slot), map.table_bytes(drive));
    }
    std::vector<Bytes> sums(parts.size());
    for (const ChunkPlace& chunk : map.chunks()) {
      EXPECT_EQ(chunk.part_offset, sums[static_cast<size_t>(chunk.part)]);
      sums[static_cast<size_t>(chunk.part)] += chunk.bytes;
      take(chunk.drive, chunk.offsets[0], chunk.bytes);
      if (map.part(chunk.part).versioned) take(chunk.drive, chunk.offsets[1], chunk.bytes);
    }
    for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(sums[i], parts[i].bytes);
  }
}

// Goal: with one version a stripe map has the bytes of one slot.
TEST(StripeMap, OfOneVersionHasHalfTheBytes) {
  std::vector<PartSpec> parts;
  for (int i = 0; i < 9; ++i) {
    parts.push_back({"part " + std::to_string(i), (1 + i * 5 % 7) * kBlockBytes});
  }
  const Geometry geometry{.chunk_bytes = 2 * kBlockBytes, .weights = {2, 1, 3}};
  for (const bool with_frozen : {false, true}) {
    const Bytes frozen = with_frozen ? 3 * kBlockBytes : 0;
    if (with_frozen) parts.push_back({"frozen", frozen, false});
    for (int drives = 1; drives <= 3; ++drives) {
      const StripeMap two(parts, geometry, drives, 2), one(parts, geometry, drives, 1);
      EXPECT_NE(one.layout_hash(), two.layout_hash());
      Bytes ones = 0, twos = 0;
      for (int drive = 0; drive < drives; ++drive) {
        ones += one.file_bytes(drive) - kManifestAreaBytes;
        twos += two.file_bytes(drive) - kManifestAreaBytes - 2 * two.table_bytes(drive);
      }
      EXPECT_EQ(2 * (ones - frozen), twos - frozen) << drives << " drives";
      for (const ChunkPlace& chunk : one.chunks()) {
        EXPECT_EQ(chunk.offsets[0], chunk.offsets[1]);
        EXPECT_LE(chunk.offsets[0] + chunk.bytes, one.file_bytes(chunk.drive));
      }
    }
  }
}

// Chunks are shared by weight.
TEST(StripeMap, SharesChunksByWeight) {
  const Geometry geometry{.chunk_bytes = kBlockBytes, .weights = {5, 3, 2}};
  const StripeMap map({{"all", 1000 * kBlockBytes, true}}, geometry, 3);
  EXPECT_EQ(map.chunks_on(0), 500);
  EXPECT_EQ(map.chunks_on(1), 300);
  EXPECT_EQ(map.chunks_on(2), 200);
}

}  // namespace
}  // namespace longshore
