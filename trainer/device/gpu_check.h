// Compares a GPU with the CPU in seconds: copies, every fused kernel with its reference,
// attention, and a few steps of a tiny model. `longshore check gpu` runs it; main thread. Runs
// start it as a child process before their first step on a GPU.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "device/cuda_runtime.h"

namespace longshore {

// Returns one line per difference. Throws CudaError and similar errors if the GPU fails.
std::vector<std::string> check_gpu(int gpu);

// SelfCheck: the check before the first step on a new combination of GPU model, driver and build. A
// child process compares the GPU with the CPU (`longshore check gpu`, gpu_check.h), so a driver
// that hangs or crashes also gives a message. Only success is recorded in the cache. Main thread.

struct SelfCheck {
  std::vector<std::string> command;  // program and arguments of the child
  // On a machine's first start all ranks read 2 GB of libraries at once.
  std::chrono::milliseconds limit{300'000};
  std::string directory;  // directory of the success record
  std::string identity;   // GPU, driver and build; the contents of the record
};
// Returns this program's check for a GPU of this machine.
SelfCheck self_check_of(const CudaDevice& gpu, int number, const std::string& cache);

// Runs the child unless the check succeeded before. GpuError with the child's output, its exit
// status and advice.
void require_sound_gpu(const SelfCheck& check);

}  // namespace longshore
