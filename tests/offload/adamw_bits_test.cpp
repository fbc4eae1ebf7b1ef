// One formula, the same bits: at every SIMD level, for every length and cut, in every state format.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "offload/adamw.h"
#include "tests/offload/adamw_slices.h"

namespace longshore {
namespace {

using fakes::AdamWState;
using fakes::Form;
using fakes::random_values;

constexpr AdamWOptions kOptions = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

std::vector<SimdLevel> levels_of_this_cpu() {
  std::vector<SimdLevel> levels;
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= best_simd_level()) levels.push_back(level);
  }
  return levels;
}

AdamWScalars scalars_of(int64_t update) {
  return make_adamw_scalars(kOptions, update, 3e-3, 0.37, true);
}

void expect_reference_bits(Form form, DType dtype, size_t count, SimdLevel level) {
  const std::vector<float> start = random_values(count, 1);
  AdamWState reference(form, dtype, start);
  AdamWState vectorised(form, dtype, start);
  for (uint32_t update = 1; update <= 3; ++update) {
    const std::vector<float> gradient = random_values(count, 100 + update);
    reference.set_gradient(gradient);
    vectorised.set_gradient(gradient);
    adamw_step_reference(reference.slice(), scalars_of(update));
    adamw_step_at(level, vectorised.slice(), scalars_of(update));
    ASSERT_TRUE(same_bits(reference, vectorised))
        << name_of(level) << ", " << count << " elements, form " << static_cast<int>(form);
  }
}

TEST(AdamW, GivesTheReferencesBitsAtEverySimdLevelAndTailLength) {
  for (SimdLevel level : levels_of_this_cpu()) {
    for (Form form : fakes::kForms) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        for (size_t count = 0; count <= 70; ++count) {
          expect_reference_bits(form, dtype, count, level);
        }
        expect_reference_bits(form, dtype, 4099, level);
      }
    }
  }
}

TEST(AdamW, GivesTheSameBitsHoweverASliceIsCut) {
  constexpr size_t kCount = 1000;
  for (Form form : fakes::kForms) {
    AdamWState whole(form, DType::kBF16, random_values(kCount, 2));
    AdamWState cut = whole;
    whole.set_gradient(random_values(kCount, 3));
    cut.set_gradient(random_values(kCount, 3));
    adamw_step(whole.slice(), scalars_of(1));
    size_t begin = 0;
    for (size_t length : {1, 2, 3, 17, 64, 255, 256, 402}) {
      adamw_step(cut.slice(begin, length), scalars_of(1));
      begin += length;
    }
    ASSERT_EQ(begin, kCount);
    EXPECT_TRUE(same_bits(whole, cut));
  }
}

TEST(AdamW, KeepsTheSameMasterBitsInEveryStateFormatOver50Steps) {
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

TEST(AdamW, RefusesSlicesThatDoNotFitTogether) {
  AdamWState state(Form::kSplit, DType::kF32, random_values(8, 5));
  state.set_gradient(random_values(8, 6));
  AdamWSlice short_gradient = state.slice();
  short_gradient.gradient = short_gradient.gradient.first(31);
  EXPECT_THROW(adamw_step(short_gradient, scalars_of(1)), CheckFailure);
  AdamWSlice short_moment = state.slice();
  short_moment.exp_avg_sq = short_moment.exp_avg_sq.first(7);
  EXPECT_THROW(adamw_step(short_moment, scalars_of(1)), CheckFailure);
  AdamWSlice no_low = state.slice();
  no_low.low = {};
  EXPECT_THROW(adamw_step(no_low, scalars_of(1)), CheckFailure);
  EXPECT_THROW(make_adamw_scalars(kOptions, 0, 1e-3, 1.0, true), CheckFailure);
}

}  // namespace
}  // namespace longshore
