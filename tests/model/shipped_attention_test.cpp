// The operators that gpu_attention.cpp, capped_attention.cpp and gradient_accumulator.cpp call
// exist in the shipped LibTorch: schemas as in its headers, and kernels for GPUs. The library of
// kernels is loaded here without a GPU.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_efficient_attention_backward_ops.h>
#include <ATen/ops/_efficient_attention_forward_ops.h>
#include <ATen/ops/_flash_attention_backward_ops.h>
#include <ATen/ops/_flash_attention_forward_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "device/cuda_device.h"

namespace longshore {
namespace {

// Looks an operator up like at::_flash_attention_forward does; throws where the C++ types differ.
template <typename Op>
c10::OperatorHandle found() {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  handle.template typed<typename Op::schema>();
  return handle;
}

std::vector<c10::OperatorHandle> called() {
  return {found<at::_ops::_flash_attention_forward>(),
          found<at::_ops::_flash_attention_backward>(),
          found<at::_ops::_efficient_attention_forward>(),
          found<at::_ops::_efficient_attention_backward>(),
          found<at::_ops::bmm_dtype>(),
          found<at::_ops::addmm_dtype_out>()};
}

// The called operators have the schemas of LibTorch's headers.
TEST(ShippedAttention, HasTheSchemasOfItsHeaders) {
  EXPECT_EQ(called().size(), 6u);
}

#if LONGSHORE_WITH_CUDA

// Loads the kernels (a gigabyte), looks, and ends the process, so that other tests stay small.
[[noreturn]] void load_and_look() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::_Exit(2);
  }
  for (const c10::OperatorHandle& op : called()) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    std::fprintf(stderr, "%s has no kernel\n", op.operator_name().name.c_str());
    std::_Exit(3);
  }
  clear_cublas_workspaces();  // found by name; throws if it is missing
  std::_Exit(0);
}

// The called operators have kernels for GPUs.
TEST(ShippedAttention, HasKernelsForGpus) {
  EXPECT_EXIT(load_and_look(), testing::ExitedWithCode(0), "");
}

#endif

}  // namespace
}  // namespace longshore
