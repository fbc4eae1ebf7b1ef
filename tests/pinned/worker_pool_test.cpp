// WorkerPool runs each block once over threads and nodes; the NUMA nodes of a machine are read.
#include "pinned/worker_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "base/errors.h"
#include "pinned/pinned_arena.h"

namespace longshore {
namespace {

// Returns `nodes` nodes that are not bound to this machine's.
std::vector<int> unbound(int nodes) {
  return std::vector<int>(static_cast<size_t>(nodes), int{tbb::task_arena::automatic});
}

// Each block runs once on any number of threads and nodes.
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

// A block's exception is rethrown, and the pool keeps working.
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

// Goal: a rank keeps to its GPU's node only where all ranks together use all nodes evenly.
TEST(Numa, ARankKeepsToTheNodeOfItsGpuIfNoNodeStaysIdle) {
  const std::vector<int> two_each = {0, 0, 1, 1};
  EXPECT_EQ(node_of_rank(two_each, 1, 2), 0);
  EXPECT_EQ(node_of_rank(two_each, 3, 2), 1);
  EXPECT_EQ(node_of_rank(std::vector<int>{2, 7, 2}, 1, 2), 7);                // numbers with a gap
  EXPECT_EQ(node_of_rank(std::vector<int>{0, 0, 0, 0}, 0, 2), std::nullopt);  // node 1 idle
  EXPECT_EQ(node_of_rank(std::vector<int>{0}, 0, 2), std::nullopt);           // one rank uses both
  EXPECT_EQ(node_of_rank(std::vector<int>{0, -1}, 0, 2), std::nullopt);       // unknown
  EXPECT_EQ(node_of_rank(std::vector<int>{0, 0}, 1, 1), std::nullopt);        // a single node
  std::atomic<int> runs = 0;
  WorkerPool(2, 0).for_each_block(10, [&](int64_t) { ++runs; });
  WorkerPool(2, 99).for_each_block(10, [&](int64_t) { ++runs; });  // no such node: all nodes
  EXPECT_EQ(runs, 20);
}

// Goal: concurrent callers each get all of their blocks and their own exception, and no thread that
// waits for one caller is held by another's blocks.
TEST(WorkerPool, ServesSeveralCallersAtOnce) {
  for (const int threads : {1, 2, 4}) {
    for (const int nodes : {1, 2}) {
      WorkerPool pool(threads, unbound(nodes));
      constexpr int kLanes = 4;
      constexpr int64_t kBlocks = 37;
      std::vector<std::thread> lanes;
      std::array<std::atomic<int64_t>, kLanes> sums{};
      std::array<std::atomic<int>, kLanes> thrown{};
      for (size_t lane = 0; lane < kLanes; ++lane) {
        lanes.emplace_back([&, lane] {
          for (int round = 0; round < 100; ++round) {
            // The parts are not atomic, because each block has its own, as in updates.
            std::vector<int64_t> parts(kBlocks);
            try {
              pool.for_each_block(kBlocks, [&](int64_t block) {
                if (lane == 3 && round % 10 == 0 && block == 5) throw std::runtime_error("block");
                parts[static_cast<size_t>(block)] = block + 1;
              });
              sums[lane] += std::accumulate(parts.begin(), parts.end(), int64_t{0});
            } catch (const std::runtime_error&) {
              ++thrown[lane];
            }
          }
        });
      }
      for (std::thread& lane : lanes) lane.join();
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const int failures = lane == 3 ? 10 : 0;
        EXPECT_EQ(thrown[lane], failures) << "lane " << lane;
        EXPECT_EQ(sums[lane], (100 - failures) * kBlocks * (kBlocks + 1) / 2) << "lane " << lane;
      }
    }
  }
}

// Goal: while one caller's blocks are held up, other callers finish, on their own thread if need
// be.
TEST(WorkerPool, NoCallerWaitsForAnothersBlocks) {
  for (const int threads : {1, 2, 4}) {
    WorkerPool pool(threads, unbound(1));
    std::promise<void> gate;
    const std::shared_future<void> open = gate.get_future().share();
    std::atomic<int> held = 0;
    std::thread slow([&] {
      pool.for_each_block(8, [&](int64_t) {
        ++held;
        EXPECT_EQ(open.wait_for(std::chrono::seconds(300)), std::future_status::ready);
      });
    });
    while (held == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> runs = 0;
      pool.for_each_block(16, [&](int64_t) { ++runs; });
      ASSERT_EQ(runs, 16);
    }
    gate.set_value();
    slow.join();
    EXPECT_EQ(held, 8);
  }
}

// The kernel's lists of ids are read, and malformed ones give none.
TEST(Numa, ReadsTheListsOfTheKernel) {
  EXPECT_EQ(parse_id_list("0\n"), (std::vector<int>{0}));
  EXPECT_EQ(parse_id_list("0-2,5,7-8"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  for (const char* text : {"", "a", "2-1", "1,", "1-", "-1", "0;1", "99999999999"}) {
    EXPECT_TRUE(parse_id_list(text).empty()) << text;
  }
}

// Nodes with memory are counted; without information there is one.
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
