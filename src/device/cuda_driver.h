// cuda_driver: reports on NVIDIA's driver without a CUDA context. This header is the same with and
// without CUDA. Any thread.
#pragma once

#include <string>

namespace longshore {

// Returns the newest CUDA version that the driver supports, such as "13.0"; empty without a driver.
std::string cuda_driver_version();
// Returns CUDA's own text for why it can use no GPU. Empty if it can, if no GPU is present or
// visible to this process, or if this build has no CUDA.
std::string cuda_trouble();

}  // namespace longshore
