// Tensors on a GPU: where code asks whether to take a GPU's branches, and where it gets the device
// for tensors of its own. Tests link another answer (tests/stand_in_gpu): those branches then run
// over tensors of the CPU. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace longshore {

bool on_gpu(const at::Tensor& x);
at::Device gpu_tensors(int gpu);

// A tensor over memory of `device`, which must outlive it. CUDA is not asked whose memory it is,
// which would take microseconds for each tensor and refuse the place behind an arena's end.
inline at::Tensor tensor_over(void* memory, at::IntArrayRef sizes, at::ScalarType dtype,
                              at::Device device) {
  return at::for_blob(memory, sizes)
      .options(at::TensorOptions().dtype(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace longshore
