// The rows of a block of chunks are read and written where they lie.
#include "model/ops/document_chunks.h"

#include <gtest/gtest.h>

#include "tests/model/allocation_meter.h"

namespace longshore {
namespace {

constexpr int64_t kHeads = 2, kWide = 3, kNarrow = 1, kWidth = kHeads * (kWide + kNarrow);

std::vector<int64_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts{0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

// Returns what is written if the columns of x, in two parts of heads, go through all blocks.
at::Tensor there_and_back(const at::Tensor& x, const std::vector<int64_t>& starts) {
  const at::Tensor to = at::full_like(x, -1.0);
  for (const ChunkBlock& block : make_blocks(starts)) {
    const BlockRows rows(block, x.device());
    rows.scatter(to, {rows.gather(x.narrow(1, 0, kHeads * kWide), kHeads),
                      rows.gather(x.narrow(1, kHeads * kWide, kHeads * kNarrow), kHeads)});
  }
  return to;
}

// Goal: the blocks of a step write every row once, whether a block's rows lie together, in a few
// ranges between documents of other sizes, or in many.
TEST(DocumentChunks, BlocksWriteTheRowsThatTheyRead) {
  std::vector<int64_t> many;
  for (int i = 0; i < 30; ++i) many.insert(many.end(), {1, 40, 3, 70});
  for (const auto& lengths : {std::vector<int64_t>{2000}, {700, 5, 300, 1, 129, 64}, many, {1}}) {
    const std::vector<int64_t> starts = starts_of(lengths);
    const at::Tensor x = at::arange(starts.back() * kWidth, at::kFloat).view({-1, kWidth});
    EXPECT_TRUE(at::equal(there_and_back(x, starts), x)) << lengths.size() << " documents";
  }
}

// Goal: a block needs memory for its own rows alone. (A GPU copied all rows of the tensor, twice
// for each part of each block.)
TEST(DocumentChunks, ABlockAllocatesForItsOwnRows) {
  constexpr int64_t kPositions = 1 << 16;
  const std::vector<ChunkBlock> blocks = make_blocks({0, kPositions});
  const at::Tensor to = at::empty({kPositions, kWidth});
  const BlockRows rows(blocks[1], to.device());
  const at::Tensor part = at::ones({8, kHeads, kScanChunk, kWide + kNarrow});
  const AllocationMeter meter;
  rows.scatter(to, part);
  EXPECT_LE(meter.peak(), 3 * kScanPositions * kWidth * int64_t{sizeof(float)});
}

}  // namespace
}  // namespace longshore
