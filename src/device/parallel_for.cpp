#include "device/parallel_for.h"

#include <ATen/Parallel.h>

#include "base/errors.h"

namespace longshore {

void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t, int64_t)>& body) {
  const int threads = at::get_num_threads();
  at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    LONGSHORE_CHECK(at::get_thread_num() < threads) << "OpenMP has more threads than LibTorch";
    body(first, last);
  });
}

int parallel_threads() {
  return at::get_num_threads();
}

int parallel_thread() {
  return at::get_thread_num();
}

}  // namespace longshore
