// What NVIDIA's driver says of itself, without a CUDA context. The same header with and without
// CUDA. Any thread.
#pragma once

#include <string>

namespace longshore {

// The newest CUDA that the driver serves, "13.0"; empty where there is no driver.
std::string cuda_driver_version();
// Why CUDA can use no GPU, in CUDA's words. Empty: it can, or there is none, or none was given to
// this process, or this build has no CUDA.
std::string cuda_trouble();

}  // namespace longshore
