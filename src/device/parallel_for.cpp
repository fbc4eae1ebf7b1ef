#include "device/parallel_for.h"

#include <ATen/Parallel.h>

#include "base/errors.h"

namespace longshore {

void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(begin, end, grain, body);
}

int parallel_threads() {
  return at::get_num_threads();
}

int parallel_thread() {
  const int number = at::get_thread_num();
  LONGSHORE_CHECK(number < at::get_num_threads()) << "OpenMP has more threads than LibTorch";
  return number;
}

}  // namespace longshore
