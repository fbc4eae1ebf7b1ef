// Blocks over threads and nodes: each once, wherever it runs; which nodes a machine has.
#include "pinned/worker_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/errors.h"
#include "pinned/numa.h"

namespace longshore {
namespace {

// As many nodes as wanted, bound to none of this machine.
std::vector<int> unbound(int nodes) {
  return std::vector<int>(static_cast<size_t>(nodes), int{tbb::task_arena::automatic});
}

TEST(WorkerPool, RunsEachBlockOnceOnAnyNumberOfThreadsAndNodes) {
  for (int threads : {1, 2, 3, 5, 8}) {
    for (int nodes : {1, 2, 3}) {
      WorkerPool pool(threads, unbound(nodes));
      EXPECT_EQ(pool.nodes(), std::min(threads, nodes));
      for (int64_t blocks : {0, 1, 2, 7, 100}) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(blocks));
        pool.for_each_block(blocks, [&](int64_t block) { ++runs[static_cast<size_t>(block)]; });
        for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1);
      }
    }
  }
}

TEST(WorkerPool, RethrowsWhatABlockThrowsOnAnyNodeAndGoesOnWorking) {
  WorkerPool pool(4, unbound(2));
  for (int64_t bad : {0, 99}) {
    const auto work = [bad](int64_t block) {
      if (block == bad) throw std::runtime_error("block");
    };
    EXPECT_THROW(pool.for_each_block(100, work), std::runtime_error);
  }
  std::atomic<int> runs = 0;
  pool.for_each_block(100, [&](int64_t) { ++runs; });
  EXPECT_EQ(runs, 100);
  EXPECT_THROW(WorkerPool(0), CheckFailure);
}

TEST(Numa, ReadsTheListsOfTheKernel) {
  EXPECT_EQ(parse_id_list("0\n"), (std::vector<int>{0}));
  EXPECT_EQ(parse_id_list("0-2,5,7-8"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  for (const char* text : {"", "a", "2-1", "1,", "1-", "-1", "0;1", "99999999999"}) {
    EXPECT_TRUE(parse_id_list(text).empty()) << text;
  }
}

TEST(Numa, CountsNodesWithMemoryAndAssumesOneWhereNothingIsSaid) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("numa_test_" + std::to_string(getpid()));
  const std::filesystem::path folder = root / "sys/devices/system/node";
  EXPECT_EQ(read_numa_nodes(root), (std::vector<int>{0}));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "has_memory") << "0,2-3\n";
  EXPECT_EQ(read_numa_nodes(root), (std::vector<int>{0, 2, 3}));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace longshore
