// `longshore bench nvme`: what drives give, measured with what a run will use. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

struct BenchNvmeOptions {
  std::vector<std::string> directories;  // one per drive
  Bytes file_bytes = 4 * kGiB;           // of the scratch file in each
  double seconds = 2.0;                  // of each of the rounds
  bool json = false;
};

// Block size and depth for each directory's drive, its speed and its cost of CPU, beside fio's.
int run_bench_nvme(const BenchNvmeOptions& options);

}  // namespace longshore
