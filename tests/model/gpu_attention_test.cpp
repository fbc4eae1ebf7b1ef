// Attention on a GPU agrees with the CPU's over the same documents: fp32 by the memory-efficient
// kernel, bf16 by FlashAttention, capped scores by plain operations.
#include "model/attention/gpu_attention.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

struct Case {
  const char* name;
  AttentionShape shape;
  std::vector<int64_t> starts;
  at::ScalarType dtype;
};

class AttentionGpu : public testing::TestWithParam<Case> {};

std::vector<at::Tensor> forward_and_backward(const std::vector<at::Tensor>& in, const Case& test) {
  const AttentionResult result = attend_forward(in[0], in[1], in[2], test.shape, test.starts);
  std::vector<at::Tensor> all =
      attend_backward(in[3], in[0], in[1], in[2], result, test.shape, test.starts);
  all.push_back(result.out);
  return all;
}

// Returns the gradients from a result that was kept in between.
std::vector<at::Tensor> backward_of_kept(const std::vector<at::Tensor>& in, const Case& test) {
  const AttentionPlace place{
      .out = at::empty(in[3].sizes(), in[3].options()),
      .sums = at::empty({in[3].size(0), test.shape.heads}, in[3].options().dtype(at::kFloat))};
  keep_attention(attend_forward(in[0], in[1], in[2], test.shape, test.starts), place, test.shape,
                 test.starts);
  const AttentionResult kept = kept_attention(place, test.shape, test.starts);
  return attend_backward(in[3], in[0], in[1], in[2], kept, test.shape, test.starts);
}

// Attention on a GPU agrees with the CPU and gives the same bits twice, and from a kept result.
TEST_P(AttentionGpu, AgreesWithTheCpuAndRepeats) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  at::manual_seed(7);
  const Case& test = GetParam();
  const int64_t rows = test.starts.back();
  const int64_t q = test.shape.heads * test.shape.head_dim;
  const int64_t kv = test.shape.kv_heads * test.shape.head_dim;
  // One tensor is cut in three, as a fused projection gives it, so rows are strided.
  const at::Tensor fused = at::randn({rows, q + 2 * kv}).to(test.dtype);
  const at::Tensor grad = at::randn({rows, q}).to(test.dtype);
  const auto inputs = [&](at::Device device) {
    std::vector<at::Tensor> parts = fused.to(device).split_with_sizes({q, kv, kv}, 1);
    parts.push_back(grad.to(device));
    return parts;
  };
  const auto reference = [&] {
    const fakes::CpuBranches branches;
    return forward_and_backward(inputs(at::kCPU), test);
  };
  const auto expected = reference();
  const auto got = forward_and_backward(inputs(gpu_tensors(0)), test);
  const auto again = forward_and_backward(inputs(gpu_tensors(0)), test);
  // In bf16 gradients are sums of products of rounded probabilities.
  const double limit = test.dtype == at::kFloat ? 1e-4 : 3e-2;
  const char* const names[] = {"grad q", "grad k", "grad v", "out"};
  // The limit is relative to all gradients: a query with one key has none of its own but rounding.
  double largest = 0.0;
  for (size_t i = 0; i < 3; ++i) {
    largest = std::max(largest, expected[i].abs().max().item<double>());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor want = expected[i].to(at::kFloat), have = got[i].cpu().to(at::kFloat);
    ASSERT_EQ(have.sizes(), want.sizes()) << names[i];
    const double error = (have - want).abs().max().item<double>();
    EXPECT_LE(error, limit * (i < 3 ? largest : want.abs().max().item<double>())) << names[i];
    EXPECT_TRUE(at::equal(got[i], again[i])) << names[i] << " repeats";
  }
  const auto kept = backward_of_kept(inputs(gpu_tensors(0)), test);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], got[i])) << names[i];
}

AttentionShape shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .window = window,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
}

AttentionShape capped(AttentionShape shape) {
  shape.cap = 2.0;
  return shape;
}

const std::vector<int64_t> kDocuments = {0, 1, 130, 700, 713, 1024};

// Returns short documents and a long one, more than one call of FlashAttention's backward takes.
std::vector<int64_t> many_documents() {
  std::vector<int64_t> starts = {0};
  for (int64_t i = 0; i < 40; ++i) starts.push_back(starts.back() + 1 + i % 9);
  starts.push_back(1024);
  return starts;
}

std::vector<Case> cases() {
  // Sizes that kernels treat differently where a block has less shared memory.
  static constexpr std::pair<int64_t, std::array<const char*, 2>> kHeadSizes[] = {
      {80, {"head_80_fp32", "head_80_bf16"}},    {96, {"head_96_fp32", "head_96_bf16"}},
      {112, {"head_112_fp32", "head_112_bf16"}}, {160, {"head_160_fp32", "head_160_bf16"}},
      {192, {"head_192_fp32", "head_192_bf16"}}, {224, {"head_224_fp32", "head_224_bf16"}},
      {256, {"head_256_fp32", "head_256_bf16"}}};
  std::vector<Case> list;
  for (const bool narrow : {false, true}) {
    const at::ScalarType dtype = narrow ? at::kBFloat16 : at::kFloat;
    for (const auto& [size, names] : kHeadSizes) {
      list.push_back({names[narrow ? 1 : 0], shape(4, 2, size, 0), {0, 1, 50, 77}, dtype});
    }
    list.push_back({narrow ? "plain_bf16" : "plain_fp32", shape(4, 4, 64, 0), kDocuments, dtype});
    list.push_back(
        {narrow ? "grouped_bf16" : "grouped_fp32", shape(8, 2, 64, 0), kDocuments, dtype});
    list.push_back(
        {narrow ? "many_bf16" : "many_fp32", shape(8, 2, 64, 0), many_documents(), dtype});
    list.push_back({narrow ? "many_in_windows_bf16" : "many_in_windows_fp32", shape(4, 2, 32, 100),
                    many_documents(), dtype});
    // FlashAttention's backward supports heads of this size on some GPUs only.
    list.push_back(
        {narrow ? "large_head_bf16" : "large_head_fp32", shape(2, 1, 208, 0), {0, 77}, dtype});
    list.push_back(
        {narrow ? "window_bf16" : "window_fp32", shape(4, 2, 32, 100), kDocuments, dtype});
    list.push_back(
        {narrow ? "window_of_one_bf16" : "window_of_one_fp32", shape(2, 2, 16, 1), {0, 40}, dtype});
    list.push_back(
        {narrow ? "capped_bf16" : "capped_fp32", capped(shape(8, 2, 64, 100)), kDocuments, dtype});
    list.push_back(
        {narrow ? "odd_head_bf16" : "odd_head_fp32", shape(3, 1, 18, 0), {0, 77}, dtype});
  }
  return list;
}

// Goal: more one-token documents than a kernel's grid may have work.
TEST(ManyDocumentsAttentionGpu, AreNoMoreThanACallTakes) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const fakes::ShapesOnly fast;
  const Case test = {"", shape(1, 1, 8, 0), {}, at::kBFloat16};
  const int64_t rows = 65'536 + 10;
  std::vector<int64_t> starts;
  for (int64_t i = 0; i <= rows; ++i) starts.push_back(i);
  const at::Tensor x =
      at::ones({rows, 8}, at::TensorOptions().dtype(test.dtype).device(gpu_tensors(0)));
  const AttentionResult result = attend_forward(x, x, x, test.shape, starts);
  EXPECT_EQ(result.out.sizes(), x.sizes());
  for (const at::Tensor& grad : attend_backward(x, x, x, x, result, test.shape, starts)) {
    EXPECT_EQ(grad.sizes(), x.sizes());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGpu, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace longshore
