// The self-check before the first step on a GPU model and driver that this build has not met: a
// child process compares the GPU with the CPU (`longshore gpu-check`, gpu_check.h), so that a
// driver that hangs or crashes is a message too. What passed is remembered in the cache; what
// failed is not. Main thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/errors.h"
#include "device/cuda_runtime.h"

namespace longshore {

// The exit code of a GPU that does not compute what the CPU does.
inline constexpr int kGpuExitCode = 10;

class GpuError : public Error {
 public:
  explicit GpuError(const std::string& text) : Error(static_cast<ExitCode>(kGpuExitCode), text) {}
};

struct SelfCheck {
  std::vector<std::string> command;  // the child: the program and its arguments
  // The first start on a machine reads 2 GB of libraries, and all ranks of it do so at once.
  std::chrono::milliseconds limit{300'000};
  std::string directory;  // where what passed is remembered
  std::string identity;   // of GPU, driver and build: what is remembered
};
// Of this program, for a GPU of this machine.
SelfCheck self_check_of(const CudaDevice& gpu, int number, const std::string& cache);

// Runs the child unless it passed before. GpuError, with what the child said, how it ended and what
// to do.
void require_sound_gpu(const SelfCheck& check);

}  // namespace longshore
