// Compares a GPU with the CPU in a few seconds: copies, every fused kernel with its reference,
// attention, and a few steps of a tiny model on both. What `longshore gpu-check` runs; main thread.
#pragma once

#include <string>
#include <vector>

namespace longshore {

// What differs, a line each; empty: nothing. Throws CudaError and the like where the GPU refuses.
std::vector<std::string> check_gpu(int gpu);

}  // namespace longshore
