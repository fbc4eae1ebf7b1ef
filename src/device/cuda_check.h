// check_cuda: throws CudaError for a failed call of the CUDA runtime. Only files that are compiled
// with CUDA include it. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "device/cuda_runtime.h"

namespace longshore {

inline void check_cuda(cudaError_t status, const std::string& operation) {
  if (status != cudaSuccess) throw CudaError(operation, cudaGetErrorString(status));
}

}  // namespace longshore
