// The clipped loss of a policy, against its formula, differences and its limits.
#include "model/losses/policy_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace longshore {
namespace {

const PreferenceOptions kOptions = {.loss = LossKind::kPolicy,
                                    .policy = {.clip_low = 0.2, .clip_high = 0.3}};

// Ratios below, between and above the bounds, for advantages of both signs, written out by hand.
TEST(PolicyLoss, IsTheLessOfBothProducts) {
  struct Case {
    double ratio, advantage, loss;
    bool clipped;
  };
  for (const Case& c :
       {Case{0.5, 2.0, -1.0, false}, Case{1.1, 2.0, -2.2, false}, Case{1.5, 2.0, -2.6, true},
        Case{0.5, -2.0, 1.6, true}, Case{1.1, -2.0, 2.2, false}, Case{1.5, -2.0, 3.0, false},
        Case{1.5, 0.0, 0.0, false}, Case{1.0, 2.0, -2.0, false}}) {
    const PolicyTerm term = policy_term(kOptions, -3.0 + std::log(c.ratio), -3.0, c.advantage);
    EXPECT_NEAR(term.ratio, c.ratio, 1e-14);
    EXPECT_NEAR(term.loss, c.loss, 1e-14) << c.ratio << " " << c.advantage;
    EXPECT_EQ(term.clipped, c.clipped) << c.ratio << " " << c.advantage;
    const double least =
        std::min(c.ratio * c.advantage, std::clamp(c.ratio, 0.8, 1.3) * c.advantage);
    EXPECT_NEAR(term.loss, -least, 1e-14) << c.ratio << " " << c.advantage;
  }
}

// The derivative agrees with central differences on both sides of the bounds.
TEST(PolicyLoss, HasTheDerivativeThatDifferencesShow) {
  constexpr double kStep = 1e-6;
  for (const double moved : {-1.0, -0.23, -0.22, 0.0, 0.26, 0.27, 1.0}) {
    for (const double advantage : {-1.5, 0.0, 0.7}) {
      const auto loss_at = [&](double step) {
        return policy_term(kOptions, -4.0 + moved + step, -4.0, advantage).loss;
      };
      const double expected = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR(policy_term(kOptions, -4.0 + moved, -4.0, advantage).by_logp, expected, 1e-8)
          << moved << " " << advantage;
    }
  }
}

// Means are over all tokens, whatever parts they were summed in.
TEST(PolicyLoss, MeansAreOverTokens) {
  PolicySums one, two;
  one.add({.ratio = 1.5, .clipped = true});
  two.add({.ratio = 1.0});
  two.add({.ratio = 0.5});
  add_values(one, two);
  EXPECT_EQ(means_of(one).ratio, 1.0);
  EXPECT_EQ(means_of(one).clip_fraction, 1.0 / 3.0);
}

}  // namespace
}  // namespace longshore
