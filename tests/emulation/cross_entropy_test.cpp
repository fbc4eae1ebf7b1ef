// The GPU's cross entropy, emulated on the host, against its reference.
#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/emulation/emulated_grid.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::CrossEntropy;

template <typename T>
class EmulatedCrossEntropy : public testing::Test {
 protected:
  static void compare(const CrossEntropy& shape, const std::vector<T>& logits,
                      const std::vector<int64_t>& targets) {
    auto expected = logits;
    std::vector<float> expected_losses(targets.size());
    kernels::cross_entropy_cpu(shape, expected.data(), targets.data(), expected_losses.data());
    Operand<T> values("logits", logits);
    Operand<int64_t> wanted("targets", targets);
    Operand<float> losses("losses", targets.size());
    kernels::cross_entropy_cuda(shape, values.data(), wanted.data(), losses.data(), nullptr);
    const std::string name =
        std::to_string(shape.rows) + " rows of " + std::to_string(shape.vocabulary);
    expected_losses.push_back(1.0f);  // a vocabulary of one has no loss
    auto got_losses = losses.values();
    got_losses.push_back(1.0f);
    EXPECT_LE(relative_error(got_losses, expected_losses), 4e-6) << name;
    if (shape.gradient) {
      EXPECT_LE(relative_error(values.values(), expected), kTolerance<T>) << name;
    } else {
      EXPECT_TRUE(same_bits(values.values(), logits)) << name << " without a gradient they stay";
    }
  }
  static void compare(int64_t rows, int64_t vocabulary) {
    const auto logits = random_values<T>(rows * vocabulary, 1, 4.0f);
    const auto targets = random_numbers(rows, vocabulary, 2);
    for (const bool gradient : {false, true}) {
      compare({kDTypeOf<T>, rows, vocabulary, 0.125, gradient}, logits, targets);
    }
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedCrossEntropy, Types);

// Goal: the kernel agrees with the reference in 216 shapes, with and without the gradient.
TYPED_TEST(EmulatedCrossEntropy, AgreesWithTheReference) {
  for (const int64_t rows : {1, 2, 3, 5, 8, 17}) {
    for (const int64_t vocabulary :
         {1,   2,   3,   4,    7,    16,   31,   32,   33,   63,   64,   65,
          96,  127, 128, 129,  200,  255,  256,  257,  300,  384,  511,  512,
          513, 700, 999, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 3001, 4100}) {
      this->compare(rows, vocabulary);
    }
  }
}

// Vocabularies of 32,000 and 128,256 agree with the reference.
TYPED_TEST(EmulatedCrossEntropy, TakesALargeVocabulary) {
  this->compare(2, 32'000);
  this->compare(1, 128'256);
}

// Goal: each row's own factor multiplies its gradient and leaves its loss.
TYPED_TEST(EmulatedCrossEntropy, ScalesRows) {
  for (const int64_t vocabulary : {3, 64, 1025}) {
    const auto logits = random_values<TypeParam>(4 * vocabulary, 1, 4.0f);
    const auto targets = random_numbers(4, vocabulary, 2);
    const std::vector<float> factors = {0.5f, -2.0f, 0.0f, 3.0f};
    const CrossEntropy plain = {kDTypeOf<TypeParam>, 4, vocabulary, 0.125, true};
    Operand<float> row_scales("row scales", factors);
    Operand<int64_t> wanted("targets", targets);
    Operand<TypeParam> values("logits", logits);
    Operand<float> losses("losses", 4);
    CrossEntropy scaled = plain;
    scaled.row_scales = row_scales.data();
    kernels::cross_entropy_cuda(scaled, values.data(), wanted.data(), losses.data(), nullptr);
    for (int64_t row = 0; row < 4; ++row) {
      std::vector<TypeParam> expected(logits.begin() + row * vocabulary,
                                      logits.begin() + (row + 1) * vocabulary);
      const float factor = factors[static_cast<size_t>(row)];
      const CrossEntropy one = {kDTypeOf<TypeParam>, 1, vocabulary, 0.125 * factor, true};
      float loss = 0.0f;
      kernels::cross_entropy_cpu(one, expected.data(), &targets[static_cast<size_t>(row)], &loss);
      const auto all = values.values();
      const std::vector<TypeParam> got(all.begin() + row * vocabulary,
                                       all.begin() + (row + 1) * vocabulary);
      if (factor == 0.0f) {
        for (const TypeParam value : got) EXPECT_EQ(kernels::to_float(value), 0.0f);
      } else {
        EXPECT_LE(relative_error(got, expected), kTolerance<TypeParam>) << row;
      }
      EXPECT_NEAR(losses.values()[static_cast<size_t>(row)], loss, 4e-6 * (1.0 + loss));
    }
    // The reference takes the same factors.
    auto reference = logits;
    scaled.row_scales = factors.data();
    std::vector<float> reference_losses(4);
    kernels::cross_entropy_cpu(scaled, reference.data(), targets.data(), reference_losses.data());
    EXPECT_LE(relative_error(values.values(), reference), kTolerance<TypeParam>);
  }
}

// Goal: the statistics of rows agree with the reference and, in fp64, with their definition; they
// change no loss and no gradient. Of equal logits the lowest id is the highest. Logits of
// -infinity, and finite ones that stand for it, whose sum overflows, have no part in the entropy.
TYPED_TEST(EmulatedCrossEntropy, TellsTheHighestLogitAndTheEntropy) {
  constexpr int64_t kRows = 6;
  const TypeParam none = kernels::rounded_to<TypeParam>(-std::numeric_limits<float>::infinity());
  for (const int64_t vocabulary : {2, 9, 64, 700, 4099}) {
    auto logits = random_values<TypeParam>(kRows * vocabulary, 1, 4.0f);
    auto targets = random_numbers(kRows, vocabulary, 2);
    const auto high = kernels::rounded_to<TypeParam>(40.0f);
    const int64_t last = vocabulary - 1;
    for (const int64_t row : {1, 2, 3}) {  // the last logit is the highest, or equal to the first
      logits[static_cast<size_t>(row * vocabulary + last)] = high;
      targets[static_cast<size_t>(row)] = last;
    }
    logits[static_cast<size_t>(2 * vocabulary)] = high;
    logits[static_cast<size_t>(4 * vocabulary)] = high;
    logits[static_cast<size_t>(4 * vocabulary + last)] = high;
    targets[4] = 0;
    logits[static_cast<size_t>(3 * vocabulary)] = none;
    // Whole threads have such logits alone, and others begin with them.
    for (int64_t i = 0; i < vocabulary / 2; ++i) {
      logits[static_cast<size_t>(5 * vocabulary + i)] = kernels::rounded_to<TypeParam>(-3e38f);
    }
    const CrossEntropy plain = {kDTypeOf<TypeParam>, kRows, vocabulary, 0.125, true};
    Operand<TypeParam> values("logits", logits), without("logits", logits);
    Operand<int64_t> wanted("targets", targets);
    Operand<float> losses("losses", kRows), same("losses", kRows);
    Operand<float> statistics("statistics", 2 * kRows);
    CrossEntropy counted = plain;
    counted.statistics = statistics.data();
    kernels::cross_entropy_cuda(counted, values.data(), wanted.data(), losses.data(), nullptr);
    kernels::cross_entropy_cuda(plain, without.data(), wanted.data(), same.data(), nullptr);
    EXPECT_TRUE(same_bits(losses.values(), same.values()));
    EXPECT_TRUE(same_bits(values.values(), without.values()));
    auto reference = logits;
    std::vector<float> reference_losses(kRows), of_reference(2 * kRows);
    counted.statistics = of_reference.data();
    kernels::cross_entropy_cpu(counted, reference.data(), targets.data(), reference_losses.data());
    const auto found = statistics.values();
    for (int64_t row = 0; row < kRows; ++row) {
      const TypeParam* const begin = logits.data() + row * vocabulary;
      double sum = 0.0, products = 0.0;
      int64_t highest = 0;
      for (int64_t i = 0; i < vocabulary; ++i) {
        const auto value = static_cast<double>(kernels::to_float(begin[i]));
        if (value > static_cast<double>(kernels::to_float(begin[highest]))) highest = i;
        if (std::isinf(value)) continue;
        sum += std::exp(value);
        products += std::exp(value) * value;
      }
      const double entropy = std::log(sum) - products / sum;
      const float hit = highest == targets[static_cast<size_t>(row)] ? 1.0f : 0.0f;
      for (const std::vector<float>& some : {found, of_reference}) {
        EXPECT_EQ(some[static_cast<size_t>(2 * row)], hit) << vocabulary << " row " << row;
        // Sums in fp32 of numbers up to the range of the logits, times their probabilities.
        EXPECT_NEAR(some[static_cast<size_t>(2 * row + 1)], entropy, 1e-5 * (1.0 + entropy))
            << vocabulary << " row " << row;
      }
    }
    EXPECT_EQ(found[2], 1.0f);
    EXPECT_EQ(found[4], 0.0f) << "the first logit is equal";
    EXPECT_EQ(found[8], 1.0f) << "the last logit is equal";
  }
}

// Goal: the loss is finite for logits that overflow exp, and for threads with only -infinity.
TYPED_TEST(EmulatedCrossEntropy, StaysFinite) {
  const TypeParam none = kernels::rounded_to<TypeParam>(-std::numeric_limits<float>::infinity());
  for (const int64_t vocabulary : {3, 33, 70, 600, 2100}) {
    for (int64_t kept = 0; kept < vocabulary; kept += 1 + vocabulary / 7) {
      std::vector<TypeParam> logits(static_cast<size_t>(vocabulary), none);
      logits[static_cast<size_t>(kept)] = kernels::rounded_to<TypeParam>(300.0f);
      logits[static_cast<size_t>(vocabulary / 2)] = kernels::rounded_to<TypeParam>(299.0f);
      const CrossEntropy shape = {kDTypeOf<TypeParam>, 1, vocabulary, 1.0, true};
      this->compare(shape, logits, {kept});
    }
  }
}

// Goal: a NaN in any logit reaches the loss.
TYPED_TEST(EmulatedCrossEntropy, TellsNaN) {
  for (const int64_t vocabulary : {1, 40, 700}) {
    for (int64_t at = 0; at < vocabulary; at += 1 + vocabulary / 5) {
      auto logits = random_values<TypeParam>(vocabulary, 1);
      logits[static_cast<size_t>(at)] = kernels::rounded_to<TypeParam>(NAN);
      Operand<TypeParam> values("logits", logits);
      Operand<int64_t> targets("targets", std::vector<int64_t>{0});
      Operand<float> losses("losses", 1);
      kernels::cross_entropy_cuda({kDTypeOf<TypeParam>, 1, vocabulary, 1.0, false}, values.data(),
                                  targets.data(), losses.data(), nullptr);
      EXPECT_TRUE(std::isnan(losses.values()[0])) << at << " of " << vocabulary;
    }
  }
}

// Goal: rows may begin at any offset from 16 bytes, whatever their length.
TYPED_TEST(EmulatedCrossEntropy, TakesRowsThatBeginAnywhere) {
  for (const int64_t vocabulary : {1, 3, 8, 9, 40, 4097}) {
    const CrossEntropy shape = {kDTypeOf<TypeParam>, 1, vocabulary, 0.5, true};
    for (int64_t before = 0; before < 16; ++before) {
      const auto all = random_values<TypeParam>(vocabulary + before, 1, 4.0f);
      std::vector<TypeParam> expected(all.begin() + before, all.end());
      const std::vector<int64_t> targets = {vocabulary / 2};
      float expected_loss = 0.0f;
      kernels::cross_entropy_cpu(shape, expected.data(), targets.data(), &expected_loss);
      Operand<TypeParam> logits("logits", all);
      Operand<int64_t> wanted("targets", targets);
      Operand<float> loss("losses", 1);
      kernels::cross_entropy_cuda(shape, logits.data() + before, wanted.data(), loss.data(),
                                  nullptr);
      const auto got = logits.values();
      const std::vector<TypeParam> gradient(got.begin() + before, got.end());
      EXPECT_LE(relative_error(gradient, expected), kTolerance<TypeParam>)
          << vocabulary << " behind " << before;
      EXPECT_NEAR(loss.values()[0], expected_loss, 4e-6 * (1.0 + std::abs(expected_loss)));
      EXPECT_TRUE(same_bits(std::vector<TypeParam>(got.begin(), got.begin() + before),
                            std::vector<TypeParam>(all.begin(), all.begin() + before)));
    }
  }
}

// A target outside the vocabulary traps.
TYPED_TEST(EmulatedCrossEntropy, TrapsOnATargetOutsideTheVocabulary) {
  for (const int64_t target : {-1, 40}) {
    Operand<TypeParam> values("logits", random_values<TypeParam>(40, 1));
    Operand<int64_t> targets("targets", std::vector<int64_t>{target});
    Operand<float> losses("losses", 1);
    EXPECT_THROW(kernels::cross_entropy_cuda({kDTypeOf<TypeParam>, 1, 40, 1.0, false},
                                             values.data(), targets.data(), losses.data(), nullptr),
                 KernelFault);
  }
}

}  // namespace
}  // namespace longshore::emulation
