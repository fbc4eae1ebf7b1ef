// One position of a recurrence computes what its header says.
#include "kernels/recurrent_steps.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/random_values.h"

namespace longshore::kernels {
namespace {

constexpr float kDecay = 0.75f, kBeta = 0.6f;

// A state of `keys` rows and `values` columns, and the result of a step.
struct Head {
  int64_t keys, values;
  std::vector<float> key = random_values(keys, 1), query = random_values(keys, 2),
                     value = random_values(values, 3), state = random_values(keys * values, 4),
                     out = std::vector<float>(static_cast<size_t>(values), 7.0f);

  void step(bool delta) {
    const RecurrentStep all{.keys = keys,
                            .values = values,
                            .key = key.data(),
                            .query = query.data(),
                            .value = value.data(),
                            .decay = kDecay,
                            .state = state.data(),
                            .out = out.data()};
    if (delta) {
      delta_step(all, kBeta);
    } else {
      recurrent_step(all);
    }
  }
};

// Checks a column of the state and of the result against the formula in fp64.
void check_column(const Head& before, const Head& after, int64_t column, bool delta) {
  double known = 0.0, out = 0.0;
  const auto at = [&](int64_t row) { return static_cast<size_t>(row * before.values + column); };
  for (size_t i = 0; i < before.key.size(); ++i) {
    known +=
        static_cast<double>(before.key[i]) * kDecay * before.state[at(static_cast<int64_t>(i))];
  }
  const double value = before.value[static_cast<size_t>(column)];
  const double written = delta ? static_cast<double>(kBeta) * (value - known) : value;
  for (int64_t row = 0; row < before.keys; ++row) {
    const auto i = static_cast<size_t>(row);
    const double state =
        static_cast<double>(kDecay) * before.state[at(row)] + before.key[i] * written;
    EXPECT_NEAR(after.state[at(row)], state, 1e-5) << row << ", " << column;
    out += before.query[i] * state;
  }
  EXPECT_NEAR(after.out[static_cast<size_t>(column)], out, 1e-4) << column;
}

// Goal: both steps compute their formulas at every width of a row's end, with the same bits on
// every instruction set.
TEST(RecurrentSteps, ComputeTheirFormulas) {
  for (const bool delta : {false, true}) {
    for (const int64_t keys : {1, 16, 37}) {
      for (const int64_t values : {1, 15, 16, 33, 64, 85}) {
        const Head before{keys, values};
        Head after = before;
        after.step(delta);
        for (int64_t column = 0; column < values; ++column) {
          check_column(before, after, column, delta);
        }
        on_each_target([&](int64_t target) {
          Head other = before;
          other.step(delta);
          EXPECT_EQ(other.state, after.state) << hwy::TargetName(target);
          EXPECT_EQ(other.out, after.out) << hwy::TargetName(target);
        });
      }
    }
  }
}

}  // namespace
}  // namespace longshore::kernels
