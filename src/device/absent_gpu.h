// absent_gpu: measuring, over CPU tensors, the memory of a GPU that is not installed. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace longshore {

// AbsentGpu: while one lives, the process allocates what it would allocate on a GPU. Code takes the
// form that it has on GPUs; matrix products of weights and GPU kernels without a CPU's twin compute
// nothing.
class AbsentGpu {
 public:
  AbsentGpu();
  AbsentGpu(const AbsentGpu&) = delete;
  AbsentGpu& operator=(const AbsentGpu&) = delete;
  ~AbsentGpu();
};

// Returns whether an AbsentGpu lives.
bool measures_absent_gpu();

// Returns whether code over x takes the form for GPUs: x is on one, or an AbsentGpu lives.
bool takes_gpu_form(const at::Tensor& x);

}  // namespace longshore
