// Sums of gradients of matrices that are added in several pieces.
#include "fsdp/grad_accumulator.h"

#include <gtest/gtest.h>

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
  const FlatLayout layout_{unit_, 1};
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(static_cast<size_t>(layout_.trainable_elements()) * sizeof(float));
  RunningSum sum_{unit_, layout_, memory_};
};

// Goal: each element is added to its own sum, of every piece, in fp32 whatever the gradient is.
TEST_F(LargeSum, AddsGradientsElementByElement) {
  at::manual_seed(1);
  const at::Tensor first = at::randn({kRows, kColumns}).to(at::kBFloat16);
  const at::Tensor second = at::randn({kColumns, kRows}).to(at::kBFloat16).t();
  sum_.add(1, first);
  sum_.add(1, second);
  EXPECT_TRUE(at::equal(summed(), first.to(at::kFloat) + second.to(at::kFloat)));
}

// Goal: a product in pieces of rows is the whole product, rounded to bf16 as each piece is.
TEST_F(LargeSum, AddsProductsRowByRow) {
  at::manual_seed(2);
  // Small whole numbers: exact in any order of additions.
  const at::Tensor left = at::randint(-3, 4, {5, kRows}).to(at::kBFloat16);
  const at::Tensor right = at::randint(-3, 4, {5, kColumns}).to(at::kBFloat16);
  const at::Tensor product = at::mm(left.to(at::kFloat).t(), right.to(at::kFloat));
  sum_.add_product(1, left, right);
  sum_.add_product(1, left, right);
  EXPECT_TRUE(at::equal(summed(), 2 * product));
}

}  // namespace
}  // namespace longshore
