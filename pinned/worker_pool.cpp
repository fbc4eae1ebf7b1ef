#include "pinned/worker_pool.h"

#include <oneapi/tbb/info.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>

#include "base/errors.h"
#include "base/mutex.h"
#include "pinned/pinned_arena.h"

namespace longshore {
namespace {

using Work = std::function<void(int64_t)>;

// Arena slots reserved for callers: the lanes that may call at once (update, h2d, d2h) and the main
// thread. A fifth concurrent caller only waits for a slot.
constexpr unsigned kCallers = 4;

// Asks oneTBB only on machines with several nodes: the query loads its binding library, and a
// single node needs no binding. oneTBB numbers the nodes in Linux's order.
std::vector<int> numa_ids(std::optional<int> node) {
  std::vector<int> ids = {int{tbb::task_arena::automatic}};
  const std::vector<int> nodes = read_numa_nodes("/");
  if (nodes.size() < 2) return ids;
  ids.clear();
  for (const tbb::numa_node_id id : tbb::info::numa_nodes()) ids.push_back(id);
  const auto found = std::ranges::find(nodes, node.value_or(-1));
  if (found == nodes.end() || ids.size() != nodes.size()) return ids;
  return {ids[static_cast<size_t>(found - nodes.begin())]};
}

std::unique_ptr<tbb::task_arena> make_arena(int numa_id, int workers) {
  const int places = workers + static_cast<int>(kCallers);
  if (numa_id == tbb::task_arena::automatic) {
    return std::make_unique<tbb::task_arena>(places, kCallers);
  }
  const tbb::task_arena::constraints bound(numa_id, places);
  return std::make_unique<tbb::task_arena>(bound, kCallers);
}

}  // namespace

std::optional<int> node_of_rank(std::span<const int> near, size_t own, size_t nodes) {
  if (nodes < 2 || near.size() < nodes || near[own] < 0) return std::nullopt;
  const auto share = static_cast<std::ptrdiff_t>((near.size() + nodes - 1) / nodes);
  for (const int node : near) {
    if (node < 0 || std::ranges::count(near, node) > share) return std::nullopt;
  }
  return near[own];
}

Mutex WorkerPool::pools_mutex_;

// One call of for_each_block: hands out blocks one by one, node by node. A helper that arrives
// after the last block finds none and does not touch the caller's data.
class WorkerPool::Call {
 public:
  Call(int64_t blocks, int64_t nodes, const Work* work) : work_(work), left_(blocks) {
    for (int64_t node = 0; node < nodes; ++node) {
      runs_.emplace_back(blocks * node / nodes, blocks * (node + 1) / nodes);
    }
  }
  int64_t blocks_of(size_t node) const { return runs_[node].end - runs_[node].begin; }
  bool has_blocks(size_t node) const { return runs_[node].next < runs_[node].end; }

  // Runs blocks of the node until none is left to take.
  void take(size_t node) {
    Run& run = runs_[node];
    while (true) {
      const int64_t block = run.next.fetch_add(1, std::memory_order_relaxed);
      if (block >= run.end) return;
      try {
        if (!failed_.load(std::memory_order_relaxed)) (*work_)(block);
      } catch (...) {
        const MutexLock lock(mutex_);
        if (first_ == nullptr) first_ = std::current_exception();
        failed_ = true;
      }
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const MutexLock lock(mutex_);
        done_ = true;
        all_done_.notify_all();
      }
    }
  }
  void wait() {
    MutexLock lock(mutex_);
    // HOST WAIT: other threads still run the last blocks.
    all_done_.wait(lock, [&]() LONGSHORE_REQUIRES(mutex_) { return done_; });
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  struct Run {
    Run(int64_t begin_block, int64_t end_block)
        : begin(begin_block), end(end_block), next(begin_block) {}
    int64_t begin;
    int64_t end;
    std::atomic<int64_t> next;
  };

  const Work* work_;
  std::deque<Run> runs_;  // by node
  std::atomic<int64_t> left_;
  std::atomic<bool> failed_ = false;
  Mutex mutex_;
  Condition all_done_;
  bool done_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::exception_ptr first_ LONGSHORE_GUARDED_BY(mutex_);
};

// A oneTBB task that helps any call with blocks left. It holds only two plain values and finds the
// calls in the pool's list: ThreadSanitizer does not see how oneTBB hands tasks over.
struct WorkerPool::Helper {
  WorkerPool* pool;
  size_t node;
  [[gnu::no_sanitize("thread")]] void operator()() const { pool->help(node); }
};

WorkerPool::WorkerPool(int threads, std::optional<int> node)
    : WorkerPool(threads, numa_ids(node)) {}

WorkerPool::WorkerPool(int threads, std::span<const int> numa_ids) : threads_(threads) {
  LONGSHORE_CHECK(threads >= 1 && !numa_ids.empty()) << threads << " on " << numa_ids.size();
  if (threads > tbb::info::default_concurrency()) {
    more_than_cores_.emplace(tbb::global_control::max_allowed_parallelism,
                             static_cast<size_t>(threads));
  }
  const int nodes = std::min(threads, static_cast<int>(numa_ids.size()));
  for (int node = 0; node < nodes; ++node) {
    const int share = threads * (node + 1) / nodes - threads * node / nodes;
    // The caller counts as one of the first node's threads.
    workers_.push_back(node == 0 ? share - 1 : share);
    arenas_.push_back(make_arena(numa_ids[static_cast<size_t>(node)], workers_.back()));
  }
}

WorkerPool::~WorkerPool() {
  MutexLock lock(pools_mutex_);
  // HOST WAIT: helpers that found no block may still access the pool.
  no_helpers_.wait(lock, [&]() LONGSHORE_REQUIRES(pools_mutex_) { return helpers_ == 0; });
}

int64_t WorkerPool::helpers_for(const Call& call, size_t node) const {
  return std::min<int64_t>(workers_[node], call.blocks_of(node));
}

void WorkerPool::for_each_block(int64_t blocks, const Work& work) {
  LONGSHORE_CHECK(blocks >= 0) << blocks;
  if (threads_ == 1 || blocks <= 1) {
    for (int64_t i = 0; i < blocks; ++i) work(i);
    return;
  }
  const auto call = std::make_shared<Call>(blocks, static_cast<int64_t>(arenas_.size()), &work);
  {
    const MutexLock lock(pools_mutex_);
    calls_.push_back(call);
    for (size_t node = 0; node < arenas_.size(); ++node) helpers_ += helpers_for(*call, node);
  }
  for (size_t node = 0; node < arenas_.size(); ++node) {
    for (int64_t i = helpers_for(*call, node); i > 0; --i) {
      arenas_[node]->enqueue(Helper{this, node});
    }
  }
  for (size_t node = 0; node < arenas_.size(); ++node) {
    arenas_[node]->execute([&] { call->take(node); });
  }
  {
    const MutexLock lock(pools_mutex_);
    std::erase(calls_, call);
  }
  call->wait();
}

void WorkerPool::help(size_t node) {
  MutexLock lock(pools_mutex_);
  while (true) {
    const auto found = std::ranges::find_if(
        calls_, [node](const std::shared_ptr<Call>& call) { return call->has_blocks(node); });
    if (found == calls_.end()) break;
    const std::shared_ptr<Call> needs_help = *found;
    lock.unlock();
    needs_help->take(node);
    lock.lock();
  }
  if (--helpers_ == 0) no_helpers_.notify_all();
}

}  // namespace longshore
