// BatchStage: what a step's batches become on the device.
#include "offload/engine/batch_stage.h"

#include <gtest/gtest.h>

#include <vector>

namespace longshore {
namespace {

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

// Goal: a token that stands for a picture is read as the token that the model puts in its place,
// and stays itself as a target.
TEST(BatchStage, ReadsPlaceholdersAsTheModelDoes) {
  std::vector<std::byte> memory(static_cast<size_t>(BatchStage::bytes_for(2, 4, false)));
  CpuCopyEngine copies;
  BatchStage stage(memory, 2, 4, {{7, 0}, {8, 5}}, &copies);
  const std::vector<int64_t> tokens = {7, 1, 8, 7}, others = {1, 2, 3, 4};
  const std::vector<int64_t> positions = {0, 1, 2, 3}, targets = {1, 8, 7, -100}, starts = {0, 4};
  const std::vector<Batch> batches = {{tokens, positions, targets, starts},
                                      {others, positions, targets, starts}};
  const std::span<const MicroBatch> loaded = stage.load(batches);
  EXPECT_EQ(values(loaded[0].tokens), (std::vector<int64_t>{0, 1, 5, 0}));
  EXPECT_EQ(values(loaded[0].targets), targets);
  EXPECT_EQ(values(loaded[1].tokens), others);
}

}  // namespace
}  // namespace longshore
