// Copy speeds in the build without CUDA: require_gpu() throws.
#include "device/copy_speed.h"
#include "device/cuda_runtime.h"

namespace longshore {

std::vector<CopySpeed> measure_copy_speeds(int device, const std::vector<Bytes>&, int) {
  require_gpu(device);
  return {};
}

std::pair<double, double> measure_copies_both_ways(int device, Bytes, int) {
  require_gpu(device);
  return {};
}

}  // namespace longshore
