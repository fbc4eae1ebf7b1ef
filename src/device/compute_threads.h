// How many threads LibTorch computes with, and the settings that make its bits repeat. Set once at
// the start of the process, before LibTorch computes anything; recorded with the run.
#pragma once

#include <string>

namespace longshore {

struct ComputeSettings {
  int threads = 1;  // intra-op
  int inter_op_threads = 1;
  std::string mkl_cbwr;  // MKL's reproducible mode, "AVX512,STRICT"; empty where there is none
};

// Sets MKL's strict reproducible mode, `threads` (>= 1) intra-op threads and one inter-op thread,
// and returns what holds. MKL reads its mode at its first use, so this comes before the first
// tensor.
ComputeSettings set_compute_threads(int threads);

// Every thread that computes with LibTorch calls this first: LibTorch applies the process's setting
// to a thread only when that thread asks. Returns the number of threads.
int adopt_compute_threads();

}  // namespace longshore
