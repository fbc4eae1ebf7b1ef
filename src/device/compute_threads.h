// compute_threads: the number of threads that LibTorch computes with, and the settings that make
// its bits repeat. The main thread sets them at the start, before LibTorch computes anything.
#pragma once

#include <string>

namespace longshore {

struct ComputeSettings {
  int threads = 1;  // intra-op
  int inter_op_threads = 1;
  std::string mkl_cbwr;  // MKL's reproducible mode, "AVX512,STRICT"; empty if it has none
};

// Sets MKL's strict reproducible mode, `threads` (>= 1) intra-op threads and one inter-op thread,
// and returns the settings in force. Call it before the first tensor: MKL reads its mode at its
// first use.
ComputeSettings set_compute_threads(int threads);

// Every thread that computes with LibTorch calls this first: LibTorch applies the process's setting
// to a thread only when that thread asks. Returns the number of threads.
int adopt_compute_threads();

}  // namespace longshore
