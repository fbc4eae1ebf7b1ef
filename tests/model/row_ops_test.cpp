// Writing rows and adding to rows on a GPU agree with the CPU.
#include "model/ops/row_ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

struct Operands {
  at::Tensor to, rows, columns, values, one_each;
};

Operands operands(int64_t count, at::ScalarType dtype) {
  at::manual_seed(5);
  const at::TensorOptions options(dtype);
  return {.to = at::randn({300, 64}).to(dtype),
          .rows = at::arange(count).mul(7).remainder(300),  // rows repeat after 300
          .columns = at::arange(300).mul(11).remainder(64).unsqueeze(1),
          .values = at::randn({count, 64}).to(dtype),
          .one_each = at::randn({300, 1}).to(dtype)};
}

at::Tensor applied(const Operands& o, const at::Device& device, bool copies) {
  at::Tensor to = o.to.clone().to(device);
  if (copies) {
    copy_rows(to, o.rows.to(device), o.values.to(device));
  } else {
    add_to_rows(to, o.rows.to(device), o.values.to(device));
    add_in_rows(to, o.columns.to(device), o.one_each.to(device));
  }
  return to.to(at::kCPU);
}

// Rows are written and added as computed by hand, also repeated rows.
TEST(RowOps, WritesAndAddsRows) {
  const at::Tensor rows = at::tensor({2, 0}, at::kLong);
  const at::Tensor values = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2});
  at::Tensor to = at::ones({3, 2});
  copy_rows(to, rows, values);
  EXPECT_TRUE(at::equal(to, at::tensor({3.0f, 4.0f, 1.0f, 1.0f, 1.0f, 2.0f}).view({3, 2})));
  add_to_rows(to, at::tensor({1, 1}, at::kLong), values);
  EXPECT_TRUE(at::equal(to, at::tensor({3.0f, 4.0f, 5.0f, 7.0f, 1.0f, 2.0f}).view({3, 2})));
  add_in_rows(to, at::tensor({1, 0, 1}, at::kLong).view({3, 1}),
              at::tensor({10.0f, 20.0f, 30.0f}).view({3, 1}));
  EXPECT_TRUE(at::equal(to, at::tensor({3.0f, 14.0f, 25.0f, 7.0f, 1.0f, 32.0f}).view({3, 2})));
}

// Goal: a GPU gives the CPU's bits for distinct rows and for repeated rows, and gives them twice.
TEST(RowOpsGpu, GiveTheBitsOfTheCpu) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  at::set_num_threads(1);  // the stand-in for GPUs adds in the order of threads
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [count, copies] : {std::pair{int64_t{290}, true},
                                        {int64_t{290}, false},
                                        {int64_t{1}, true},
                                        {int64_t{4000}, false}}) {
      const Operands o = operands(count, dtype);
      at::Tensor expected;
      {
        const fakes::CpuBranches cpu;
        expected = applied(o, at::kCPU, copies);
      }
      const at::Tensor got = applied(o, gpu_tensors(0), copies);
      if (dtype == at::kFloat) {
        EXPECT_TRUE(at::equal(got, expected)) << count << (copies ? " copied" : " added");
      } else {
        // For repeated rows a GPU may round once, while the CPU rounds each time.
        EXPECT_TRUE(at::allclose(got.to(at::kFloat), expected.to(at::kFloat), 2e-2, 2e-1));
      }
      EXPECT_TRUE(at::equal(applied(o, gpu_tensors(0), copies), got)) << "a second run";
    }
  }
}

// Goal: rows are written to contiguous tensors alone, because LibTorch would copy all of another.
TEST(RowOpsGpu, NeedAContiguousTensor) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const at::Tensor all = at::zeros({9, 4}).to(gpu_tensors(0));
  const at::Tensor rows = at::arange(3).to(all.device());
  const at::Tensor values = at::ones({3, 4}).to(all.device());
  copy_rows(all, rows, values);
  EXPECT_THROW(copy_rows(all.narrow(1, 0, 2), rows, values.narrow(1, 0, 2)), CheckFailure);
}

}  // namespace
}  // namespace longshore
