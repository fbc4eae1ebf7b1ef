// The identity of a model of which several ranks read parts that overlap, as the shards of packed
// matrices do.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/comm/rank_threads.h"
#include "tests/parity/run_driver.h"
#include "trainer/model/frozen_check.h"

namespace longshore {
namespace {

RunConfig golden_config() {
  RunConfig config;
  config.model.path = golden_directory("llama");
  return config;
}

// Reads tenths [begin, end) of every tensor.
void read_tenths(const ModelSource& source, Bytes begin, Bytes end) {
  for (const StoredTensor& stored : source.stored_tensors()) {
    const Bytes first = stored.tensor->bytes * begin / 10, last = stored.tensor->bytes * end / 10;
    std::vector<std::byte> bytes(static_cast<size_t>(last - first));
    stored.file->read(*stored.tensor, first, bytes);
  }
}

std::string values_of_whole() {
  const ModelSource source(golden_config());
  read_tenths(source, 0, 10);
  return read_identity(source, nullptr).values;
}

TEST(SharedReads, CountOnce) {
  const std::string whole = values_of_whole();
  ASSERT_NE(whole, "");
  const std::vector<std::pair<Bytes, Bytes>> parts = {{0, 5}, {3, 8}, {6, 10}};
  run_ranks(3, [&](World& world) {
    const ModelSource source(golden_config());
    const auto [begin, end] = parts[static_cast<size_t>(world.ranks().rank)];
    read_tenths(source, begin, end);
    EXPECT_EQ(read_identity(source, &world).values, whole) << "rank " << world.ranks().rank;
  });
}

// A gap between the parts leaves the tensors unread, so there is no identity of all values.
TEST(SharedReads, LeaveNoGap) {
  run_ranks(2, [&](World& world) {
    const ModelSource source(golden_config());
    const bool first = world.ranks().rank == 0;
    read_tenths(source, first ? 0 : 5, first ? 4 : 10);
    EXPECT_EQ(read_identity(source, &world).values, "") << "rank " << world.ranks().rank;
  });
}

}  // namespace
}  // namespace longshore
