#include "trainer/bench/bench_copies.h"

#include "base/json.h"
#include "base/output.h"
#include "device/copy_speed.h"

namespace longshore {
namespace {

// Sizes from one parameter of a small model to a block of a large one.
const std::vector<Bytes> kCopyBytes = {4 * kMiB, 32 * kMiB, 256 * kMiB};
constexpr int kRounds = 7;

}  // namespace

int run_bench_copies(const BenchCopiesOptions& options) {
  const auto speeds = measure_copy_speeds(options.gpu, kCopyBytes, kRounds);
  Json rows = Json::array();
  for (const CopySpeed& speed : speeds) {
    const double share = speed.gb_per_second / speed.best_gb_per_second;
    rows.push_back({{"direction", speed.direction},
                    {"copy_bytes", speed.bytes},
                    {"gb_per_second", speed.gb_per_second},
                    {"best_cudamemcpy_gb_per_second", speed.best_gb_per_second},
                    {"share_of_best", share}});
    if (options.json) continue;
    print_out("%s, copies of %s: %.2f GB/s, %.1f %% of the best cudaMemcpyAsync (%.2f)\n",
              speed.direction.c_str(), format_bytes(speed.bytes).c_str(), speed.gb_per_second,
              100.0 * share, speed.best_gb_per_second);
  }
  if (options.json) print_out("%s\n", Json({{"rows", rows}}).dump(2).c_str());
  return 0;
}

}  // namespace longshore
