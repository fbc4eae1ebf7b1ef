#include "device/compute_threads.h"

#include <ATen/Parallel.h>

#include <cstdlib>

#include "base/cpu_features.h"
#include "base/errors.h"

namespace longshore {
namespace {

// The instruction set MKL is bound to; the strict modes exist for these two only.
std::string strict_mode_of_this_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (cpu_has_avx512()) return "AVX512,STRICT";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "AVX2,STRICT";
#endif
  return "";
}

// oneDNN's products are prepared for their shape, and 1,024 of them are kept twice: their code by
// oneDNN (200 MiB where experts have another number of rows in every step), their description, 90
// KiB each, by LibTorch for every thread. A micro-batch has some 20 shapes; documents of other
// lengths have others, so more are not used again. What is set already stays.
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
  // LibTorch takes this setting once in a process.
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  settings.threads = adopt_compute_threads();
  settings.inter_op_threads = at::get_num_interop_threads();
  return settings;
}

int adopt_compute_threads() {
  return at::get_num_threads();
}

}  // namespace longshore
