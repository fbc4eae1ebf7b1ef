// Tensors on a GPU: where code asks whether to take a GPU's branches, and where it gets the device
// for tensors of its own. Tests link another answer (tests/stand_in_gpu): those branches then run
// over tensors of the CPU. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace longshore {

bool on_gpu(const at::Tensor& x);
at::Device gpu_tensors(int gpu);

}  // namespace longshore
