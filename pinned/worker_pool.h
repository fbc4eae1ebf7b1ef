// WorkerPool: the CPU threads of the plan for work on the host tier: touching, joining, the update.
// Owned by the run; one owner thread calls it and works along. Results never depend on the number
// of threads, because callers cut work into blocks that do not depend on it.
#pragma once

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace longshore {

class WorkerPool {
 public:
  // `threads` >= 1, the caller included.
  explicit WorkerPool(int threads);

  int threads() const { return threads_; }
  // Calls work(i) once for every i in [0, blocks), in no fixed order, and returns when all are
  // done. The first exception of a block is rethrown here.
  void for_each_block(int64_t blocks, const std::function<void(int64_t)>& work);

 private:
  int threads_;
  // oneTBB starts no more threads than cores unless told to; the plan's count holds.
  std::optional<tbb::global_control> more_than_cores_;
  tbb::task_arena arena_;
};

}  // namespace longshore
