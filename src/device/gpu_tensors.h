// gpu_tensors: decides whether code takes a GPU's branches and names the device for its tensors.
// Tests link another definition of on_gpu and gpu_tensors (tests/stand_in_gpu) that runs those
// branches over CPU tensors. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "base/dtype.h"

namespace longshore {

bool on_gpu(const at::Tensor& x);
at::Device gpu_tensors(int gpu);

// AbsentGpu: while one lives, the process makes the allocations that it would make on a GPU. Code
// takes its GPU branches; matrix products of weights, and GPU kernels without a CPU version,
// allocate their results but do not compute them.
class AbsentGpu {
 public:
  AbsentGpu();
  AbsentGpu(const AbsentGpu&) = delete;
  AbsentGpu& operator=(const AbsentGpu&) = delete;
  ~AbsentGpu();
};

// Returns whether an AbsentGpu lives.
bool measures_absent_gpu();

// Returns whether code over x takes its GPU branches: x is on a GPU, or an AbsentGpu lives.
bool takes_gpu_form(const at::Tensor& x);

// Returns LibTorch's type of a dtype.
inline at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
  }
  return at::kFloat;
}

// Makes a tensor over memory of `device`, which must outlive it. It does not ask CUDA who owns the
// memory: that takes microseconds per tensor and fails for the address at an arena's end.
inline at::Tensor tensor_over(void* memory, at::IntArrayRef sizes, at::ScalarType dtype,
                              at::Device device) {
  return at::for_blob(memory, sizes)
      .options(at::TensorOptions().dtype(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace longshore
