// Sums of products in fp32: every layout of the factors, no rounding to their dtype.
#include "model/ops/wide_products.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

at::Tensor values_of(std::vector<int64_t> sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::kFloat).to(dtype);
}

// Returns the matrix in one of the ways in which it can lie in memory.
at::Tensor laid_out(const at::Tensor& matrix, int way) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  if (way == 0) return matrix.contiguous();
  if (way == 1) return matrix.t().contiguous().t();
  at::Tensor wide = at::zeros({rows, 3 * columns + 1}, matrix.options());
  const at::Tensor part = way == 2 ? wide.narrow(1, columns, columns)   // distant rows
                                   : wide.slice(1, 0, 2 * columns, 2);  // distant elements
  part.copy_(matrix);
  return part;
}

void expect_sum(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor exact = sum.to(at::kDouble).addmm(left.to(at::kDouble), right.to(at::kDouble));
  // fp32 sums of `inner` products: sizes of the terms, not of the result, bound the rounding.
  const at::Tensor terms = at::mm(left.abs().to(at::kDouble), right.abs().to(at::kDouble));
  const at::Tensor bound = (terms + exact.abs()) * (1e-7 * static_cast<double>(left.size(1) + 2));
  at::Tensor got = sum.clone();
  add_wide_product(got, left, right);
  EXPECT_TRUE(((got.to(at::kDouble) - exact).abs() <= bound).all().item<bool>())
      << left.sizes() << left.strides() << " x " << right.sizes() << right.strides();
}

// Goal: the product is added in fp32, whatever the dtype, the sizes and the strides. A product that
// was rounded to bf16 would be wrong by 4e-3.
TEST(WideProducts, AreExactInFp32ForEveryLayout) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto [rows, inner, columns] : {std::array<int64_t, 3>{5, 7, 3},
                                              {1, 9, 4},
                                              {6, 1, 5},
                                              {4, 8, 1},
                                              {1, 1, 1},
                                              {64, 33, 48},
                                              {130, 257, 66}}) {
      const at::Tensor left = values_of({rows, inner}, dtype);
      const at::Tensor right = values_of({inner, columns}, dtype);
      const at::Tensor sum = at::randn({rows, columns});
      for (int way = 0; way < 4; ++way) {
        for (int other = 0; other < 4; ++other) {
          expect_sum(sum, laid_out(left, way), laid_out(right, other));
        }
      }
    }
  }
}

// A micro-batch without rows, as an expert that got no token has, adds nothing.
TEST(WideProducts, OfNothingAddNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor sum = at::ones({3, 2});
    add_wide_product(sum, values_of({3, 0}, dtype), values_of({0, 2}, dtype));
    EXPECT_TRUE(at::equal(sum, at::ones({3, 2})));
  }
}

// A first product overwrites what the memory held, NaN included, and one without rows leaves zeros.
TEST(WideProducts, SetInsteadOfAdd) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t inner : {0, 1, 37}) {
      const at::Tensor left = values_of({24, inner}, dtype), right = values_of({inner, 40}, dtype);
      const at::Tensor expected = at::zeros({24, 40});
      add_wide_product(expected, left, right);
      const at::Tensor sum = at::full({24, 40}, std::numeric_limits<double>::quiet_NaN());
      set_wide_product(sum, left, right);
      EXPECT_TRUE(at::equal(sum, expected)) << inner;
    }
  }
}

// A probe that measures memory alone computes none, and its sizes are checked all the same.
TEST(WideProducts, AreSkippedForAProbe) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor sum = at::zeros({3, 2}), left = at::ones({3, 4}, dtype);
    {
      const AbsentGpu absent;
      add_wide_product(sum, left, at::ones({4, 2}, dtype));
      EXPECT_THROW(add_wide_product(sum, left, at::ones({5, 2}, dtype)), CheckFailure);
      EXPECT_TRUE(at::equal(sum, at::zeros({3, 2})));
    }
    add_wide_product(sum, left, at::ones({4, 2}, dtype));
    EXPECT_TRUE(at::equal(sum, at::full({3, 2}, 4.0)));
  }
}

// Two calls give the same bits.
TEST(WideProducts, Repeat) {
  const at::Tensor left = values_of({96, 300}, at::kBFloat16);
  const at::Tensor right = values_of({300, 72}, at::kBFloat16);
  at::Tensor first = at::zeros({96, 72}), second = at::zeros({96, 72});
  add_wide_product(first, left, right);
  add_wide_product(second, left, right);
  EXPECT_TRUE(at::equal(first, second));
}

// Sizes that do not match are refused before anything is written.
TEST(WideProducts, RefuseOtherSizes) {
  EXPECT_THROW(add_wide_product(at::zeros({3, 2}), values_of({3, 4}, at::kFloat),
                                values_of({5, 2}, at::kFloat)),
               CheckFailure);
}

}  // namespace
}  // namespace longshore
