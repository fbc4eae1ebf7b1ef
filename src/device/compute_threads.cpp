#include "device/compute_threads.h"

#include <ATen/Parallel.h>

#include <cstdlib>

#include "base/errors.h"
#include "base/processor.h"

namespace longshore {
namespace {

// Returns the instruction set for MKL's strict mode, which exists for these two only; else "".
std::string strict_mode_of_this_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (cpu_has_avx512()) return "AVX512,STRICT";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "AVX2,STRICT";
#endif
  return "";
}

// By default 1,024 of oneDNN's matrix products are cached for their shapes twice: oneDNN keeps
// their code (200 MiB if experts get a different number of rows in every step), and each thread of
// LibTorch keeps their descriptions (90 KiB each). A micro-batch has about 20 shapes, and documents
// of other lengths have others, so more are not reused. Variables that are already set stay as they
// are.
void keep_few_prepared_products() {
  for (const char* const name : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    LONGSHORE_CHECK(setenv(name, "64", /*overwrite=*/0) == 0) << name;
  }
}

}  // namespace

ComputeSettings set_compute_threads(int threads) {
  LONGSHORE_CHECK(threads >= 1) << threads;
  ComputeSettings settings;
  settings.mkl_cbwr = strict_mode_of_this_cpu();
  if (!settings.mkl_cbwr.empty()) {
    LONGSHORE_CHECK(setenv("MKL_CBWR", settings.mkl_cbwr.c_str(), 1) == 0);
  }
  keep_few_prepared_products();
  at::set_num_threads(threads);
  // LibTorch accepts this setting only once per process.
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  settings.threads = adopt_compute_threads();
  settings.inter_op_threads = at::get_num_interop_threads();
  return settings;
}

int adopt_compute_threads() {
  return at::get_num_threads();
}

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
