// Attention on GPUs that are newer than LibTorch's memory-efficient kernel: the stand-in's operator
// refuses there, as the kernel computes nothing, so plain operations take its place.
#include <gtest/gtest.h>

#include <cmath>

#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "model/attention/document_attention.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore {
namespace {

struct Case {
  const char* name;
  int64_t heads, kv_heads, head_dim, window;
  bool sinks;
  at::ScalarType dtype;
};

// A GPU of compute capability 12.0 while it lives.
class NewerGpu {
 public:
  NewerGpu() {
    CudaDevice newer = before_.front();
    newer.compute_major = 12;
    stand_in::set_gpus({newer});
  }
  NewerGpu(const NewerGpu&) = delete;
  NewerGpu& operator=(const NewerGpu&) = delete;
  ~NewerGpu() { stand_in::set_gpus(before_); }

 private:
  std::vector<CudaDevice> before_ = cuda_devices();
};

class PlainAttentionGpu : public testing::TestWithParam<Case> {};

// Goal: an RTX 50 trains in fp32, and with heads that FlashAttention does not take, with the CPU's
// numbers, and from results that were kept; its kernel would have left zeros.
TEST_P(PlainAttentionGpu, AgreesWithTheCpuWhereTheKernelDoesNotRun) {
  const NewerGpu gpu;
  prepare_cuda(0);
  at::manual_seed(7);
  const Case& test = GetParam();
  const AttentionShape shape{.heads = test.heads,
                             .kv_heads = test.kv_heads,
                             .head_dim = test.head_dim,
                             .window = test.window,
                             .scale = 1.0 / std::sqrt(static_cast<double>(test.head_dim))};
  const std::vector<int64_t> starts = {0, 1, 130, 430, 443};
  const int64_t rows = starts.back(), width = test.heads * test.head_dim;
  const int64_t key_width = test.kv_heads * test.head_dim;
  const auto random = [&](int64_t columns) { return at::randn({rows, columns}).to(test.dtype); };
  const at::Tensor q = random(width), k = random(key_width), v = random(key_width);
  const at::Tensor grad = random(width);
  const at::Tensor sinks = test.sinks ? at::randn({test.heads}).to(test.dtype) : at::Tensor();
  const auto run = [&] {
    const AttentionResult result = attend_forward(q, k, v, shape, starts, sinks);
    std::vector<at::Tensor> all = attend_backward(grad, q, k, v, result, shape, starts, sinks);
    all.push_back(result.out);
    return all;
  };
  const auto reference = [&] {
    const fakes::CpuBranches branches;
    return run();
  };
  const auto expected = reference(), got = run();
  ASSERT_EQ(got.size(), expected.size());
  const double limit = test.dtype == at::kFloat ? 1e-4 : 3e-2;
  for (size_t i = 0; i < got.size(); ++i) {
    const at::Tensor want = expected[i].to(at::kFloat);
    const double error = (got[i].to(at::kFloat) - want).abs().max().item<double>();
    EXPECT_LE(error, limit * want.abs().max().item<double>()) << "result " << i;
  }
  const AttentionPlace place{.out = at::empty_like(grad),
                             .sums = at::empty({rows, test.heads}, at::kFloat)};
  keep_attention(attend_forward(q, k, v, shape, starts, sinks), place, shape, starts);
  const auto kept =
      attend_backward(grad, q, k, v, kept_attention(place, shape, starts), shape, starts, sinks);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], got[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, PlainAttentionGpu,
                         testing::Values(Case{"plain", 4, 4, 64, 0, false, at::kFloat},
                                         Case{"grouped", 8, 2, 64, 0, false, at::kFloat},
                                         Case{"window", 4, 2, 32, 100, false, at::kFloat},
                                         Case{"sinks", 4, 2, 32, 0, true, at::kFloat},
                                         Case{"odd_head", 3, 1, 18, 0, false, at::kFloat},
                                         Case{"large_head_bf16", 2, 1, 208, 0, false,
                                              at::kBFloat16}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace longshore
