// Benchmarks of transfers: `longshore bench nvme` measures drives with the I/O code of runs,
// `longshore bench files` reads a model's files as a run does whose frozen parameters stay there,
// and `longshore bench copies` copies the host's arena to a GPU and back. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

// `longshore bench nvme` measures drives with the I/O code of runs. Main thread.

struct BenchNvmeOptions {
  std::vector<std::string> directories;  // one per drive
  Bytes file_bytes = 4 * kGiB;           // size of each drive's scratch file
  double seconds = 2.0;                  // duration of each round
  bool json = false;
};

// Prints block size, depth, speed and CPU cost for each directory's drive, with fio as baseline.
int run_bench_nvme(const BenchNvmeOptions& options);

// `longshore bench files` reads every tensor of a model once, as a pass of a run with
// offload.parameters = "files" does, without computing. Main thread.

struct BenchFilesOptions {
  std::string model;     // a directory or a hub id
  int rounds = 3;        // passes over the model, each in turn with fio on its largest file
  double seconds = 2.0;  // of each round of fio
  bool json = false;
};

// Prints the median speed of a pass, with fio as baseline.
int run_bench_files(const BenchFilesOptions& options);

// `longshore bench copies` copies the host's arena to a GPU and back and compares with the fastest
// cudaMemcpyAsync. Main thread.

struct BenchCopiesOptions {
  int gpu = 0;
  bool json = false;
};

// ConfigError if there is no GPU.
int run_bench_copies(const BenchCopiesOptions& options);

}  // namespace longshore
