// GpuCheck: compares a GPU with the CPU in seconds: copies, every fused kernel with its reference,
// attention, and a few steps of a tiny model. `longshore check gpu` runs it; main thread.
#pragma once

#include <string>
#include <vector>

namespace longshore {

// Returns one line per difference. Throws CudaError and similar errors if the GPU fails.
std::vector<std::string> check_gpu(int gpu);

}  // namespace longshore
