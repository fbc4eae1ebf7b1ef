// Whole steps with everything overlapped. Over a pairwise cover of options that must not change a
// bit, the state after some steps is compared bit for bit, with random pauses on every stream.
#include "tests/engine/overlapped_steps.h"

#include <gtest/gtest.h>

#include <map>

#include "base/errors.h"
#include "offload/optimizer/adamw.h"
#include "tests/fakes/operations.h"
#include "tests/fakes/sanitizer.h"

namespace longshore {
namespace {

// On one rank every variant ends with the same bits. Sanitizers, under which each takes ten times
// as long, run one in five; all options are among these.
TEST(OverlappedStep, OneRankGivesTheSameBits) {
  for (const bool clips : {true, false}) {
    const uint64_t expected = train_alone({.prefetch = 0, .clips = clips}, 6);
    std::vector<UpdateOverlap> overlaps = {UpdateOverlap::kNone, UpdateOverlap::kForward};
    if (!clips) overlaps.push_back(UpdateOverlap::kBackward);
    uint64_t seed = 1;
    for (const UpdateOverlap overlap : overlaps) {
      for (const int64_t prefetch : {0, 1, 2, 3}) {
        for (const InputHome inputs : {InputHome::kDevice, InputHome::kHost, InputHome::kNvme}) {
          const uint64_t own = seed++;
          if (kSanitized && own % 5 != 0) continue;
          const Variant variant{.prefetch = prefetch,
                                .recompute = (own % 2) == 0,
                                .inputs = inputs,
                                .overlap = overlap,
                                .clips = clips,
                                .delays = StreamDelays{.seed = own, .most_microseconds = 300}};
          EXPECT_EQ(train_alone(variant, 6), expected) << variant.text();
        }
      }
    }
  }
}

// A tier of the user's own gives the same bits; the engine does not know where bytes are kept.
TEST(OverlappedStep, ATierOfOnesOwnGivesTheSameBits) {
  uint64_t seed = 1;
  std::vector<Variant> variants = {{.prefetch = 0}};
  for (const UpdateOverlap overlap : {UpdateOverlap::kNone, UpdateOverlap::kForward}) {
    for (const int64_t prefetch : {0, 1, 3}) {
      for (const InputHome inputs : {InputHome::kDevice, InputHome::kNvme}) {
        variants.push_back({.prefetch = prefetch,
                            .recompute = (seed % 2) == 0,
                            .inputs = inputs,
                            .overlap = overlap,
                            .delays = StreamDelays{.seed = seed, .most_microseconds = 300},
                            .files = true});
        ++seed;
      }
    }
  }
  const uint64_t alone = train_alone(variants[0], 6);
  for (const Variant& variant : variants)
    EXPECT_EQ(train_alone(variant, 6), alone) << variant.text();
  const auto digests = train_ranks(2, variants, 6);
  for (size_t i = 1; i < variants.size(); ++i) {
    EXPECT_EQ(digests[i], digests[0]) << variants[i].text();
  }
}

class OverlappedRanks : public testing::TestWithParam<int32_t> {};

// On several ranks every variant ends with the same bits.
TEST_P(OverlappedRanks, GiveTheSameBits) {
  for (const bool clips : {true, false}) {
    const std::vector<Variant> variants = cover(clips);
    const auto digests = train_ranks(GetParam(), variants, 6);
    for (size_t i = 1; i < variants.size(); ++i) {
      EXPECT_EQ(digests[i], digests[0]) << variants[i].text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OverlappedRanks, testing::Values(2, 4));

std::vector<Variant> delayed(uint64_t seeds) {
  std::vector<Variant> variants = {{.prefetch = 0}};
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    variants.push_back({.prefetch = static_cast<int64_t>(seed % 4),
                        .recompute = seed % 8 < 4,
                        .inputs = static_cast<InputHome>(seed % 3),
                        .overlap = UpdateOverlap::kForward,
                        .gather = seed % 5 < 2 ? GatherMode::kHost : GatherMode::kCollective,
                        .delays = StreamDelays{.seed = seed, .most_microseconds = 200}});
  }
  return variants;
}

void expect_same_bits(const std::vector<Variant>& variants) {
  const auto digests = train_ranks(2, variants, 3);
  for (size_t i = 1; i < variants.size(); ++i) {
    EXPECT_EQ(digests[i], digests[0]) << variants[i].text();
  }
}

// Random delays change no bit on two ranks.
TEST(OverlappedStep, DelaysChangeNothingOnTwoRanks) {
  expect_same_bits(delayed(40));
}

// A thousand random delays change no bit on two ranks; this takes a minute or two.
TEST(LongOverlappedStep, AThousandDelaysChangeNothingOnTwoRanks) {
  expect_same_bits(delayed(1000));
}

// The engine's thread waits for the pass and the totals only, whatever the number of units.
TEST(OverlappedStep, WaitsOnTheHostAreTheNamedOnes) {
  const auto model = make_deep_model();
  for (const UpdateOverlap overlap : {UpdateOverlap::kNone, UpdateOverlap::kForward}) {
    const Variant variant{.overlap = overlap};
    Engine engine(model.get(), plan_of(*model, variant, 1),
                  std::make_unique<AdamWRule>(AdamWOptions{}));
    train(engine, *model, variant, 4);
    std::map<std::string, int64_t> waits;
    for (const auto& [reason, count] : engine.host_waits().counts()) waits[reason] = count;
    const int64_t updates =
        overlap == UpdateOverlap::kNone ? 4 : 1;  // "forward" waits for the flush at the end only
    EXPECT_EQ(waits, (std::map<std::string, int64_t>{{"the train pass", 4}, {"updates", updates}}));
  }
}

// Schedules with a missing dependency are detected while they run, without the validator.
// Operations may happen to run in the right order, so each schedule runs with other delays until it
// is found.
TEST(OverlappedStep, BrokenSchedulesAreFound) {
  const auto model = make_deep_model();
  const Variant variant{.overlap = UpdateOverlap::kForward};
  const TierPlan good = plan_of(*model, variant, 1);
  const auto is_found = [&](const TierPlan& plan, uint64_t seed) {
    Engine engine(model.get(), plan, std::make_unique<AdamWRule>(AdamWOptions{}), {}, {},
                  {.delays = StreamDelays{.seed = seed, .most_microseconds = 2000}});
    try {
      train(engine, *model, variant, 3);
    } catch (const CheckFailure&) {
      return true;
    }
    return false;
  };
  const auto breaks = [&](const std::function<void(StepSchedule&)>& change) {
    TierPlan plan = good;
    change(plan.step.schedules.train);
    bool found = false;
    for (uint64_t seed = 1; seed <= 50 && !found; ++seed) found = is_found(plan, seed);
    EXPECT_TRUE(found);
  };
  const auto first_of = [](StepSchedule& schedule, OpKind kind, size_t skip) -> Op& {
    for (Op& op : schedule.ops) {
      if (op.kind == kind && skip-- == 0) return op;
    }
    throw std::logic_error("no such operation");
  };
  // The broken schedules fill a slot that is read, compute a unit before its fetch, reuse a
  // gradient buffer before its offload, fetch a unit before its update, and offload a gradient
  // twice.
  breaks([&](StepSchedule& s) {
    for (Op& op : s.ops) {
      if (op.kind == OpKind::kFetch) op.after.clear();
    }
  });
  breaks([&](StepSchedule& s) {
    for (Op& op : s.ops) {
      if (op.kind == OpKind::kForward) op.after.clear();
    }
  });
  breaks([&](StepSchedule& s) {
    for (Op& op : s.ops) {
      const bool takes = op.kind == OpKind::kBackward || op.kind == OpKind::kDrain;
      if (takes && op.find<GradientBuffer>()) fakes::set_slot(op, GradientBuffer(0));
    }
  });
  breaks([&](StepSchedule& s) {
    s.ops.push_back(first_of(s, OpKind::kDrain, 1));
    fakes::drop_slot<GradientBuffer>(s.ops.back());
  });
}

// A host gradient slot that another unit holds, or whose update has not run, is not taken.
TEST(OverlappedStep, BrokenTurnsAtHomeAreFound) {
  const auto model = make_deep_model();
  const auto fails = [&](const TierPlan& plan, const std::string& part) {
    Engine engine(model.get(), plan, std::make_unique<AdamWRule>(AdamWOptions{}));
    try {
      train(engine, *model, {.overlap = plan.step.overlap, .clips = false}, 1);
      ADD_FAILURE() << "no error: " << part;
    } catch (const CheckFailure& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const TierPlan good = plan_of(*model, {.overlap = UpdateOverlap::kBackward}, 1);
  // Without an update no host slot becomes free.
  TierPlan early = plan_of(*model, {.overlap = UpdateOverlap::kNone}, 1);
  early.host.gradient_ring = good.host.gradient_ring;
  early.host.gradients = good.host.gradients;
  int32_t drains = 0;
  for (Op& op : early.step.schedules.train.ops) {
    if (op.kind == OpKind::kDrain) fakes::set_slot(op, HostGradientSlot(drains++ % 2));
  }
  fails(early, "host gradient slot 0 still has unit 6; unit 4 may not take it");
  // The last unit is updated before its gradient arrives, then from the other slot.
  TierPlan hasty = good;
  for (Op& op : hasty.step.schedules.train.ops) {
    if (op.kind == OpKind::kUpdate) op.after.clear();
  }
  fails(hasty, "host gradient slot 0 has unit -1, not 6");
  TierPlan lost = good;
  for (Op& op : lost.step.schedules.train.ops) {
    if (op.kind != OpKind::kUpdate) continue;
    fakes::set_slot(op, HostGradientSlot(1 - op.slot<HostGradientSlot>().value));
  }
  fails(lost, "host gradient slot 1 has unit ");
}

}  // namespace
}  // namespace longshore
