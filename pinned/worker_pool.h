// WorkerPool: the plan's CPU threads for work on the host tier (touching pages, joining masters,
// the update). The engine owns it. Any thread may call it, several at once: a caller works only on
// its own blocks, and workers take blocks of all calls, so no lane waits for another lane's blocks,
// and a caller may hold locks that its blocks do not take. Results do not depend on the number of
// threads because callers cut the work into blocks that do not depend on it.
//
// On a machine with several NUMA nodes each node has a bound arena with its share of the threads.
// Blocks are dealt in contiguous runs, one for each node in order, so the thread that first touches
// a region and the threads that later work on it in memory order are on the same node. A rank that
// shares the machine with others keeps to the node of its GPU (node_of_rank).
#pragma once

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace longshore {

// Returns the NUMA node whose cores and memory a rank uses: that of its GPU, because a copy between
// the GPU and another node's memory crosses the sockets. `near` has for each rank of this machine
// the node of its GPU (-1: unknown), `own` is this rank's index in it, `nodes` is the number of the
// machine's nodes. Empty if a node would have more than its share of the ranks, because other nodes
// would then be idle.
std::optional<int> node_of_rank(std::span<const int> near, size_t own, size_t nodes);

class WorkerPool {
 public:
  // `threads` >= 1 includes one caller. The pool uses the NUMA nodes of this machine, or only
  // `node`, which is numbered as Linux does.
  explicit WorkerPool(int threads, std::optional<int> node = {});
  ~WorkerPool();
  // Uses oneTBB's NUMA ids instead; tbb::task_arena::automatic binds an arena to no node.
  WorkerPool(int threads, std::span<const int> numa_ids);

  int threads() const { return threads_; }
  int nodes() const { return static_cast<int>(arenas_.size()); }
  // Calls work(i) once for every i in [0, blocks), in no fixed order, and returns when all are
  // done. Rethrows the first exception of a block.
  void for_each_block(int64_t blocks, const std::function<void(int64_t)>& work);

 private:
  class Call;
  struct Helper;

  int64_t helpers_for(const Call& call, size_t node) const;
  // Runs blocks of all calls that have blocks left on the node.
  void help(size_t node);

  int threads_;
  // oneTBB's default is at most one thread per core; this raises the limit to the plan's count.
  std::optional<tbb::global_control> more_than_cores_;
  std::vector<std::unique_ptr<tbb::task_arena>> arenas_;  // by node; callers begin with the first
  std::vector<int> workers_;                              // by node
  // One mutex serves all pools. It exists before any pool, because ThreadSanitizer does not see how
  // oneTBB hands a new pool to its threads.
  static Mutex pools_mutex_;
  Condition no_helpers_;
  // Tasks of oneTBB that have not ended.
  int64_t helpers_ LONGSHORE_GUARDED_BY(pools_mutex_) = 0;
  // Calls with blocks that no thread has taken.
  std::vector<std::shared_ptr<Call>> calls_ LONGSHORE_GUARDED_BY(pools_mutex_);
};

}  // namespace longshore
