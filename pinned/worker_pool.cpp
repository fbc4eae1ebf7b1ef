#include "pinned/worker_pool.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_group.h>

#include <algorithm>
#include <exception>

#include "base/errors.h"
#include "pinned/numa.h"

namespace longshore {
namespace {

using Work = std::function<void(int64_t)>;

// oneTBB is asked only where there are several nodes: its binding library is loaded by the
// question, and one node needs no binding.
std::vector<int> numa_ids() {
  std::vector<int> ids = {int{tbb::task_arena::automatic}};
  if (read_numa_nodes("/").size() < 2) return ids;
  ids.clear();
  for (const tbb::numa_node_id id : tbb::info::numa_nodes()) ids.push_back(id);
  return ids;
}

std::unique_ptr<tbb::task_arena> make_arena(int numa_id, int threads, unsigned for_masters) {
  if (numa_id == tbb::task_arena::automatic) {
    return std::make_unique<tbb::task_arena>(threads, for_masters);
  }
  const tbb::task_arena::constraints bound(numa_id, threads);
  return std::make_unique<tbb::task_arena>(bound, for_masters);
}

void run_blocks(int64_t begin, int64_t end, const Work& work) {
  tbb::parallel_for(
      tbb::blocked_range<int64_t>(begin, end, 1),
      [&](const tbb::blocked_range<int64_t>& range) {
        for (int64_t i = range.begin(); i < range.end(); ++i) work(i);
      },
      tbb::simple_partitioner());
}

}  // namespace

WorkerPool::WorkerPool(int threads) : WorkerPool(threads, numa_ids()) {}

WorkerPool::WorkerPool(int threads, std::span<const int> numa_ids) : threads_(threads) {
  LONGSHORE_CHECK(threads >= 1 && !numa_ids.empty()) << threads << " on " << numa_ids.size();
  if (threads > tbb::info::default_concurrency()) {
    more_than_cores_.emplace(tbb::global_control::max_allowed_parallelism,
                             static_cast<size_t>(threads));
  }
  const int nodes = std::min(threads, static_cast<int>(numa_ids.size()));
  for (int node = 0; node < nodes; ++node) {
    const int share = threads * (node + 1) / nodes - threads * node / nodes;
    // The caller works along in the first node's arena only.
    arenas_.push_back(make_arena(numa_ids[static_cast<size_t>(node)], share, node == 0 ? 1 : 0));
  }
}

void WorkerPool::for_each_block(int64_t blocks, const Work& work) {
  LONGSHORE_CHECK(blocks >= 0) << blocks;
  if (threads_ == 1 || blocks <= 1) {
    for (int64_t i = 0; i < blocks; ++i) work(i);
    return;
  }
  const int64_t nodes = static_cast<int64_t>(arenas_.size());
  const auto begin_of = [&](int64_t node) { return blocks * node / nodes; };
  std::vector<tbb::task_group> groups(static_cast<size_t>(nodes));
  for (int64_t node = 1; node < nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    arenas_[at]->execute([&, node, at] {
      groups[at].run([&, node] { run_blocks(begin_of(node), begin_of(node + 1), work); });
    });
  }
  std::exception_ptr first;
  for (int64_t node = 0; node < nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    try {
      arenas_[at]->execute([&] {
        if (node == 0) run_blocks(0, begin_of(1), work);
        groups[at].wait();
      });
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace longshore
