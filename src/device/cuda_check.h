// check_cuda: turns a failed call of the CUDA runtime into CudaError. Only for files that are
// compiled with CUDA. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "device/cuda_runtime.h"

namespace longshore {

inline void check_cuda(cudaError_t status, const std::string& operation) {
  if (status != cudaSuccess) throw CudaError(operation, cudaGetErrorString(status));
}

}  // namespace longshore
