// AdamW gives the same bits at every SIMD level, for every length and cut, in every state format.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/errors.h"
#include "offload/optimizer/adamw.h"
#include "tests/offload/adamw_slices.h"

namespace longshore {
namespace {

using fakes::AdamWState;
using fakes::Form;
using fakes::random_values;

constexpr AdamWOptions kOptions = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

std::vector<SimdLevel> levels_of_this_cpu() {
  std::vector<SimdLevel> levels;
  for (SimdLevel level : kSimdLevels) {
    if (cpu_has(level)) levels.push_back(level);
  }
  return levels;
}

AdamWScalars scalars_of(int64_t update) {
  return make_adamw_scalars(kOptions, update, 3e-3, 0.37, true);
}

// Returns random values with infinities, huge and tiny values among them.
std::vector<float> wild_values(size_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  for (size_t i = 0; i < count; ++i) {
    if (i % 97 == 11) values[i] = std::ldexp(values[i], 120);
    if (i % 89 == 13) values[i] = std::ldexp(values[i], -120);
    if (i % 1009 == 17) values[i] = std::numeric_limits<float>::infinity();
    if (i % 1013 == 19) values[i] = -std::numeric_limits<float>::infinity();
  }
  return values;
}

void expect_reference_bits(Form form, DType dtype, size_t count, SimdLevel level,
                           uint32_t updates) {
  const std::vector<float> start = random_values(count, 1);
  AdamWState reference(form, dtype, start);
  AdamWState vectorised(form, dtype, start);
  for (uint32_t update = 1; update <= updates; ++update) {
    const std::vector<float> gradient = wild_values(count, 100 + update);
    for (AdamWState* state : {&reference, &vectorised}) {
      state->set_gradient(gradient);
      state->update = (uint64_t{3} << 32) + update;
    }
    adamw_step_reference(reference.slice(), scalars_of(update));
    adamw_step_at(level, vectorised.slice(), scalars_of(update));
    ASSERT_TRUE(same_bits(reference, vectorised))
        << name_of(level) << ", " << count << " elements, form " << static_cast<int>(form);
  }
}

void expect_reference_bits_everywhere(size_t count, uint32_t updates) {
  for (SimdLevel level : levels_of_this_cpu()) {
    for (Form form : fakes::kForms) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        expect_reference_bits(form, dtype, count, level, updates);
      }
    }
  }
}

// Goal: every SIMD path equals the scalar reference bit for bit, with every tail length.
TEST(AdamW, GivesTheReferencesBitsAtEverySimdLevelAndTailLength) {
  for (size_t count = 0; count <= 130; ++count) expect_reference_bits_everywhere(count, 2);
  for (size_t count : {255, 256, 257, 511, 4099, 30011}) expect_reference_bits_everywhere(count, 3);
}

// Goal: a moment at the end of the range never rounds to infinity, and infinities and NaN stay,
// wherever they stand among ordinary values.
TEST(AdamW, RoundsMomentsAtTheEndOfTheRangeToTheReferencesBits) {
  AdamWOptions forgetful = kOptions;
  forgetful.beta1 = forgetful.beta2 = 0.0;  // moments are the gradient and its square
  // The clip scale reaches the largest bf16 and, for the square of the second value, beyond it.
  const AdamWScalars scalars = make_adamw_scalars(forgetful, 1, 3e-3, 1.003, true);
  constexpr uint32_t kEnds[] = {0x7f7f0000, 0x5f7f0000, 0xff7f0000, 0x7f800000, 0x7fc00000};
  constexpr size_t kCount = 4096;
  std::vector<float> gradient = random_values(kCount, 2);
  for (size_t i = 0; i < kCount; i += 29) gradient[i] = std::bit_cast<float>(kEnds[i % 5]);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (SimdLevel level : levels_of_this_cpu()) {
      AdamWState reference(Form::kSplitBf16, dtype, random_values(kCount, 1));
      reference.set_gradient(gradient);
      AdamWState vectorised = reference;
      adamw_step_reference(reference.slice(), scalars);
      adamw_step_at(level, vectorised.slice(), scalars);
      ASSERT_TRUE(same_bits(reference, vectorised)) << name_of(level);
      for (const Moment which : {Moment::kFirst, Moment::kSecond}) {
        const std::vector<float> moments = reference.moments(which);
        const auto largest = std::bit_cast<float>(0x7f7f0000u);
        EXPECT_NE(std::find(moments.begin(), moments.end(), largest), moments.end())
            << "the end of the range is not reached";
      }
    }
  }
}

// Goal: every SIMD path equals the reference on 1e8 elements; this takes minutes.
TEST(LongAdamW, GivesTheReferencesBitsOver100MillionElements) {
  for (size_t round = 0; round < 4; ++round) expect_reference_bits_everywhere(1000003 + round, 1);
  for (SimdLevel level : levels_of_this_cpu()) {
    if (level == SimdLevel::kBaseline) continue;
    for (Form form : fakes::kForms) expect_reference_bits(form, DType::kBF16, 2000003, level, 4);
  }
}

// An update of a slice gives the same bits however the slice is cut.
TEST(AdamW, GivesTheSameBitsHoweverASliceIsCut) {
  constexpr size_t kCount = 3000;
  for (Form form : fakes::kForms) {
    AdamWState whole(form, DType::kBF16, random_values(kCount, 2));
    AdamWState cut = whole;
    for (AdamWState* state : {&whole, &cut}) state->set_gradient(random_values(kCount, 3));
    adamw_step(whole.slice(), scalars_of(1));
    // Rounded moments are cut where a shard or tile may begin.
    const bool anywhere = fakes::moments_of(form) == MomentFormat::kF32;
    const std::vector<size_t> ends =
        anywhere ? std::vector<size_t>{1, 3, 6, 23, 87, 342, 598, 1000, kCount}
                 : std::vector<size_t>{256, 768, 1024, 2560, kCount};
    size_t begin = 0;
    for (size_t end : ends) {
      adamw_step(cut.slice(begin, end - begin), scalars_of(1));
      begin = end;
    }
    EXPECT_TRUE(same_bits(whole, cut)) << static_cast<int>(form);
  }
}

// Goal: the split format equals fp32 bit for bit over 1e6 random updates with extreme values.
TEST(AdamW, KeepsTheSameMasterInFp32AndSplitOverAMillionUpdates) {
  constexpr size_t kCount = 20000;
  AdamWState both(Form::kMasterAndParameter, DType::kF32, wild_values(kCount, 8));
  AdamWState split(Form::kSplit, DType::kF32, wild_values(kCount, 8));
  for (uint32_t update = 1; update <= 50; ++update) {
    const std::vector<float> gradient = wild_values(kCount, 2000 + update);
    for (AdamWState* state : {&both, &split}) {
      state->set_gradient(gradient);
      adamw_step(state->slice(), scalars_of(update));
    }
    ASSERT_TRUE(fakes::same_bits(both.master, split.masters())) << update;
    ASSERT_TRUE(fakes::same_bits(both.high, split.high)) << update;
  }
  EXPECT_TRUE(fakes::same_bits(both.exp_avg, split.exp_avg));
  EXPECT_TRUE(fakes::same_bits(both.exp_avg_sq, split.exp_avg_sq));
}

// All exact formats keep the same master bits over 50 steps.
TEST(AdamW, KeepsTheSameMasterBitsInEveryExactFormOver50Steps) {
  constexpr size_t kCount = 4096;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<float> start = random_values(kCount, 4);
    AdamWState master(Form::kMaster, dtype, start);
    AdamWState both(Form::kMasterAndParameter, dtype, start);
    AdamWState split(Form::kSplit, dtype, start);
    for (uint32_t update = 1; update <= 50; ++update) {
      const std::vector<float> gradient = random_values(kCount, 1000 + update);
      for (AdamWState* state : {&master, &both, &split}) {
        state->set_gradient(gradient);
        adamw_step(state->slice(), scalars_of(update));
      }
    }
    EXPECT_TRUE(fakes::same_bits(master.master, both.master));
    EXPECT_TRUE(fakes::same_bits(master.master, split.masters()));
    EXPECT_TRUE(fakes::same_bits(both.high, split.high)) << "the device reads the same parameter";
    EXPECT_TRUE(fakes::same_bits(master.exp_avg_sq, split.exp_avg_sq));
    EXPECT_FALSE(fakes::same_bits(master.master, start)) << "nothing moved";
  }
}

// Slices whose lengths do not match are refused.
TEST(AdamW, RefusesSlicesThatDoNotFitTogether) {
  AdamWState state(Form::kSplit, DType::kF32, random_values(8, 5));
  state.set_gradient(random_values(8, 6));
  UpdateSlice short_gradient = state.slice();
  short_gradient.gradient = short_gradient.gradient.first(31);
  EXPECT_THROW(adamw_step(short_gradient, scalars_of(1)), CheckFailure);
  UpdateSlice short_moment = state.slice();
  short_moment.regions[1] = short_moment.regions[1].part(0, 7);
  EXPECT_THROW(adamw_step(short_moment, scalars_of(1)), CheckFailure);
  UpdateSlice no_low = state.slice();
  no_low.low = {};
  EXPECT_THROW(adamw_step(no_low, scalars_of(1)), CheckFailure);
  AdamWState bf16(Form::kSplitBf16, DType::kF32, random_values(8, 5));
  bf16.set_gradient(random_values(8, 6));
  UpdateSlice between_blocks = bf16.slice();
  between_blocks.rounding.first_element = 4;
  EXPECT_THROW(adamw_step(between_blocks, scalars_of(1)), CheckFailure);
  EXPECT_THROW(make_adamw_scalars(kOptions, 0, 1e-3, 1.0, true), CheckFailure);
}

}  // namespace
}  // namespace longshore
