#include "pinned/worker_pool.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>

#include "base/errors.h"

namespace longshore {

WorkerPool::WorkerPool(int threads) : threads_(threads), arena_(threads) {
  LONGSHORE_CHECK(threads >= 1) << threads;
  if (threads > tbb::info::default_concurrency()) {
    more_than_cores_.emplace(tbb::global_control::max_allowed_parallelism,
                             static_cast<size_t>(threads));
  }
}

void WorkerPool::for_each_block(int64_t blocks, const std::function<void(int64_t)>& work) {
  LONGSHORE_CHECK(blocks >= 0) << blocks;
  if (threads_ == 1 || blocks <= 1) {
    for (int64_t i = 0; i < blocks; ++i) work(i);
    return;
  }
  arena_.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, blocks, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          for (int64_t i = range.begin(); i < range.end(); ++i) work(i);
        },
        tbb::simple_partitioner());
  });
}

}  // namespace longshore
