// Sums of gradients of matrices that are added in several pieces.
#include "offload/engine/unit_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "device/cuda_device.h"
#include "device/device_memory.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/gpu.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 700, kColumns = 900;  // 630,000 elements: three pieces

UnitSpec make_unit() {
  UnitSpec unit;
  unit.id = UnitId(0);
  unit.name = "block";
  unit.parameters = {fakes::make_parameter("small", {3}),
                     fakes::make_parameter("large", {kRows, kColumns})};
  return unit;
}

class LargeSum : public testing::Test {
 protected:
  LargeSum() { sum_.clear(); }
  at::Tensor summed() {
    return at::from_blob(sum_.sums().data() + layout_.parameter(1).begin, {kRows, kColumns},
                         at::kFloat);
  }

  const UnitSpec unit_ = make_unit();
  const FlatLayout layout_{unit_, 1, DType::kF32};
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(static_cast<size_t>(layout_.trainable_elements()) * sizeof(float));
  RunningSum sum_{unit_, layout_, memory_};
};

// Goal: every element is added to its own sum in fp32, whatever the gradient's type.
TEST_F(LargeSum, AddsGradientsElementByElement) {
  at::manual_seed(1);
  const at::Tensor first = at::randn({kRows, kColumns}).to(at::kBFloat16);
  const at::Tensor second = at::randn({kColumns, kRows}).to(at::kBFloat16).t();
  sum_.add(1, first);
  sum_.add(1, second);
  EXPECT_TRUE(at::equal(summed(), first.to(at::kFloat) + second.to(at::kFloat)));
}

// Goal: products of bf16 are added in fp32.
TEST_F(LargeSum, AddsProducts) {
  at::manual_seed(2);
  // Sums of small whole numbers are exact in any order.
  const at::Tensor left = at::randint(-3, 4, {5, kRows}).to(at::kBFloat16);
  const at::Tensor right = at::randint(-3, 4, {5, kColumns}).to(at::kBFloat16);
  const at::Tensor product = at::mm(left.to(at::kFloat).t(), right.to(at::kFloat));
  sum_.add_product(1, left, right);
  sum_.add_product(1, left, right);
  EXPECT_TRUE(at::equal(summed(), 2 * product));
}

// Goal: what a buffer held before is in no sum, whatever is added first, if anything is; and not in
// the padding between parameters.
TEST_F(LargeSum, BeginsAnewInAUsedBuffer) {
  at::manual_seed(4);
  const at::Tensor grad = at::randn({kRows, kColumns}), left = at::ones({1, kRows});
  const at::Tensor right = at::randn({1, kColumns}), row = at::tensor({int64_t{5}});
  const auto begin = [&] {
    std::ranges::fill(sum_.sums(), std::numeric_limits<float>::quiet_NaN());
    sum_.clear();
  };
  begin();
  sum_.add(1, grad);
  EXPECT_TRUE(at::equal(summed(), grad));
  begin();
  sum_.add_product(1, left, right);
  EXPECT_TRUE(at::equal(summed(), right.expand({kRows, kColumns})));
  begin();
  sum_.add_rows(1, row, right);
  EXPECT_TRUE(at::equal(summed()[5], right[0]));
  EXPECT_EQ(summed().count_nonzero().item<int64_t>(), kColumns);
  begin();
  sum_.finish();
  EXPECT_TRUE(std::ranges::all_of(sum_.sums(), [](float sum) { return sum == 0.0f; }));
}

// Goal: a GPU adds 16-bit products in fp32 without rounding them to 16 bits.
TEST(LargeSumGpu, AddsProductsWithoutRoundingThem) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const UnitSpec unit = make_unit();
  const FlatLayout layout(unit, 1, DType::kF32);
  const auto arena = make_cuda_arena(align_up(layout.trainable_elements() * 4, 256), 0);
  RunningSum sum(unit, layout, arena->bytes(), gpu_tensors(0));
  sum.clear();
  at::manual_seed(3);
  // The operands are exact in 16 bits, their products only in fp32.
  const at::Tensor left = at::randint(-200, 200, {5, kRows}).to(at::kBFloat16);
  const at::Tensor right = at::randint(-200, 200, {5, kColumns}).to(at::kBFloat16);
  const at::Tensor product = at::mm(left.to(at::kFloat).t(), right.to(at::kFloat));
  EXPECT_FALSE(at::equal(product, product.to(at::kBFloat16).to(at::kFloat)));
  sum.add_product(1, left.to(gpu_tensors(0)), right.to(gpu_tensors(0)));
  sum.add_product(1, left.to(gpu_tensors(0)), right.to(gpu_tensors(0)));
  const at::Tensor summed =
      at::from_blob(sum.sums().data() + layout.parameter(1).begin, {kRows, kColumns},
                    at::TensorOptions().dtype(at::kFloat).device(gpu_tensors(0)));
  EXPECT_TRUE(at::equal(summed.cpu(), 2 * product));
}

}  // namespace
}  // namespace longshore
