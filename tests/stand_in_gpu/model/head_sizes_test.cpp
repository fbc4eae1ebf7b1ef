// Attention with heads of sizes that no golden model has, on GPUs whose blocks have 99 KiB of
// shared memory (RTX 30, 40 and 50, L4, L40S): FlashAttention's backward has no kernel for some of
// them there, and the stand-in's operator refuses those.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "device/cuda_device.h"
#include "model/attention/document_attention.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore {
namespace {

class HeadSizesAttentionGpu
    : public testing::TestWithParam<std::tuple<int, int64_t, at::ScalarType>> {
 protected:
  ~HeadSizesAttentionGpu() override { stand_in::set_gpus(before_); }

  void set_capability(int capability) {
    CudaDevice gpu = before_.front();
    gpu.compute_major = capability / 10;
    gpu.compute_minor = capability % 10;
    stand_in::set_gpus({gpu});
  }

 private:
  const std::vector<CudaDevice> before_ = cuda_devices();
};

// Goal: heads of every size train on every card with the CPU's numbers, and with the same bits
// twice.
TEST_P(HeadSizesAttentionGpu, AgreeWithTheCpuAndRepeat) {
  const auto [capability, head_dim, dtype] = GetParam();
  set_capability(capability);
  prepare_cuda(0);
  at::manual_seed(7);
  const AttentionShape shape{.heads = 2,
                             .kv_heads = 1,
                             .head_dim = head_dim,
                             .window = 0,
                             .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
  const std::vector<int64_t> starts = {0, 1, 50, 77};
  const int64_t rows = starts.back();
  const auto random = [&](int64_t columns) { return at::randn({rows, columns}).to(dtype); };
  const at::Tensor q = random(2 * head_dim), k = random(head_dim), v = random(head_dim);
  const at::Tensor grad = random(2 * head_dim);
  const auto run = [&] {
    const AttentionResult result = attend_forward(q, k, v, shape, starts);
    std::vector<at::Tensor> all = attend_backward(grad, q, k, v, result, shape, starts);
    all.push_back(result.out);
    return all;
  };
  const auto reference = [&] {
    const fakes::CpuBranches branches;
    return run();
  };
  const auto expected = reference(), got = run(), again = run();
  const double limit = dtype == at::kFloat ? 1e-4 : 3e-2;
  double largest = 0.0;
  for (const at::Tensor& want : expected) {
    largest = std::max(largest, want.abs().max().item<double>());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor difference = got[i].to(at::kFloat) - expected[i].to(at::kFloat);
    EXPECT_LE(difference.abs().max().item<double>(), limit * largest) << "result " << i;
    EXPECT_TRUE(at::equal(got[i], again[i])) << "result " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, HeadSizesAttentionGpu,
    testing::Combine(testing::Values(86, 89, 120), testing::Values(80, 96, 112, 160, 192, 224, 256),
                     testing::Values(at::kFloat, at::kBFloat16)),
    [](const testing::TestParamInfo<std::tuple<int, int64_t, at::ScalarType>>& info) {
      return "sm" + std::to_string(std::get<0>(info.param)) + "_" +
             std::to_string(std::get<1>(info.param)) +
             (std::get<2>(info.param) == at::kFloat ? "_fp32" : "_bf16");
    });

}  // namespace
}  // namespace longshore
