// What gpu_attention.cpp, capped_attention.cpp and gradient_accumulator.cpp call is in the LibTorch
// that we ship: schemas as its headers have them, and kernels for GPUs behind them. The kernels'
// library is loaded here without a GPU.
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

// As at::_flash_attention_forward and so on look for themselves; throws where the C++ types differ.
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

TEST(ShippedAttention, HasTheSchemasOfItsHeaders) {
  EXPECT_EQ(called().size(), 6u);
}

#if LONGSHORE_WITH_CUDA

// Ends the process: loading a gigabyte of kernels is nothing for those that test other things.
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
  clear_cublas_workspaces();  // found by its name; throws where there is none
  std::_Exit(0);
}

TEST(ShippedAttention, HasKernelsForGpus) {
  EXPECT_EXIT(load_and_look(), testing::ExitedWithCode(0), "");
}

#endif

}  // namespace
}  // namespace longshore
