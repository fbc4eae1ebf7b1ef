// WorkerPool: the CPU threads of the plan for work on the host tier: touching, joining, the update.
// Owned by the engine. Any thread may call it, several at once: each caller works along on its own
// blocks and on no other caller's, the workers take blocks of all. So no lane waits for another
// lane's blocks, and a caller may hold what its blocks do not ask for. Results never depend on the
// number of threads, because callers cut work into blocks that do not depend on it.
//
// Where the machine has several NUMA nodes, each has an arena with its share of the
// threads, bound to it. Blocks are dealt in runs: the first to the first node, and so on. So
// whoever touches a region first and whoever works on it later, in blocks in the order of memory,
// are on one node.
#pragma once

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace longshore {

class WorkerPool {
 public:
  // `threads` >= 1, one caller included, on the nodes of this machine.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  // On arenas of oneTBB's NUMA ids; tbb::task_arena::automatic is one bound to no node.
  WorkerPool(int threads, std::span<const int> numa_ids);

  int threads() const { return threads_; }
  int nodes() const { return static_cast<int>(arenas_.size()); }
  // Calls work(i) once for every i in [0, blocks), in no fixed order, and returns when all are
  // done. The first exception of a block is rethrown here.
  void for_each_block(int64_t blocks, const std::function<void(int64_t)>& work);

 private:
  class Call;
  struct Helper;

  int64_t helpers_for(const Call& call, size_t node) const;
  // Works for the calls that have blocks left on the node.
  void help(size_t node);

  int threads_;
  // oneTBB starts no more threads than cores unless told to; the plan's count holds.
  std::optional<tbb::global_control> more_than_cores_;
  std::vector<std::unique_ptr<tbb::task_arena>> arenas_;  // by node; callers begin with the first
  std::vector<int> workers_;                              // by node
  // Under a mutex that all pools share.
  std::condition_variable no_helpers_;
  int64_t helpers_ = 0;                       // tasks of oneTBB that have not ended
  std::vector<std::shared_ptr<Call>> calls_;  // those with blocks that nobody has taken
};

}  // namespace longshore
