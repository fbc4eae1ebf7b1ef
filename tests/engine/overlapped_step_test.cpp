// Whole steps on the engine, with everything overlapped: over a cover of what may not change a bit,
// the state after some steps is compared bit for bit, with random pauses on every stream. Ranks are
// threads with a world of their own.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/hash.h"
#include "offload/engine/engine.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/optimizer/clip.h"
#include "offload/plan/machine.h"
#include "tests/comm/rank_threads.h"
#include "tests/engine/file_tier.h"
#include "tests/engine/small_model.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

constexpr int64_t kPositions = 12;
constexpr int64_t kLayers = 5;

// Where kept inputs are.
enum class InputHome : uint8_t { kDevice, kHost, kNvme };

struct Variant {
  int64_t prefetch = 1;
  bool recompute = true;
  InputHome inputs = InputHome::kDevice;
  UpdateOverlap overlap = UpdateOverlap::kNone;
  bool clips = true;
  GatherMode gather = GatherMode::kCollective;
  std::optional<StreamDelays> delays = {};
  bool files = false;  // state, parameters and inputs that leave the device are a FileTier's

  std::string text() const {
    return "prefetch " + std::to_string(prefetch) + ", recompute " + std::to_string(recompute) +
           ", inputs " + std::to_string(static_cast<int>(inputs)) + ", gather " +
           std::to_string(static_cast<int>(gather)) + ", overlap " +
           std::to_string(static_cast<int>(overlap)) + ", delays " +
           std::to_string(delays ? static_cast<int64_t>(delays->seed) : -1) +
           (files ? ", in files" : "");
  }
};

// A table, hidden layers of two sizes and a head.
std::unique_ptr<ModuleModel> make_deep_model() {
  torch::manual_seed(11);
  auto model = std::make_unique<ModuleModel>();
  const std::vector<CarryTensorSpec> carry = {{kSmallHidden}};
  const auto randomise = [](torch::nn::Module& module) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) parameter.normal_(0.0, 0.5);
  };
  torch::nn::Embedding table(kSmallVocabulary, kSmallHidden);
  randomise(*table);
  model->add_unit(
      "table", table.ptr(),
      [table](const Carry&, const MicroBatch& batch) mutable { return Carry{table(batch.tokens)}; },
      carry);
  for (int64_t i = 0; i < kLayers; ++i) {
    const int64_t wide = i % 2 == 0 ? 24 : 72;
    torch::nn::Sequential layer(torch::nn::Linear(kSmallHidden, wide), torch::nn::Tanh(),
                                torch::nn::Linear(wide, kSmallHidden));
    randomise(*layer);
    model->add_unit(
        "layer." + std::to_string(i), layer.ptr(),
        [layer](const Carry& in, const MicroBatch&) mutable {
          return Carry{in[0] + layer->forward(in[0])};
        },
        carry);
  }
  torch::nn::Linear scores(kSmallHidden, kSmallVocabulary);
  randomise(*scores);
  model->add_loss("scores", scores.ptr(),
                  [scores](const Carry& in, const MicroBatch&) mutable { return scores(in[0]); });
  return model;
}

// LibTorch's memory is counted for the whole process, so units are measured before ranks start.
const UnitCosts& costs() {
  static const UnitCosts measured =
      unit_costs(*make_deep_model(), DType::kF32, 1,
                 {.positions = kPositions, .longest_document = kPositions});
  return measured;
}

TierPlan plan_of(const Model& model, const Variant& variant, int32_t ranks) {
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = costs();
  // Split masters are joined for fp32 compute, which shared memory does not do.
  inputs.state = {.format = ranks == 1 ? StateFormat::kSplitBf16 : StateFormat::kFp32,
                  .compute = DType::kF32,
                  .drain = DType::kF32};
  inputs.topology = make_topology(ShardStrategy::kFullShard, ranks, ranks);
  inputs.ranks_per_node = ranks;
  inputs.sequences_per_step = 4;
  inputs.max_tokens = kPositions;
  inputs.prefetch = variant.prefetch;
  inputs.recompute = variant.recompute;
  inputs.offload_inputs = variant.inputs != InputHome::kDevice;
  inputs.nvme.inputs = variant.inputs == InputHome::kNvme;
  inputs.nvme.state = inputs.nvme.parameters = variant.files;
  if (inputs.nvme.inputs || inputs.nvme.state) {
    static const ScratchDirectory one, two;
    inputs.nvme.directories = {one.path(), two.path()};
  }
  inputs.overlap = variant.overlap;
  inputs.gather = variant.gather;
  inputs.device_cap = 2 * kGiB;
  TierPlan plan = make_tier_plan(inputs, probe_machine());
  EXPECT_EQ(plan.host.gradient_ring > 0, variant.overlap == UpdateOverlap::kBackward);
  return plan;
}

// Everything that the rank keeps, and the losses, as one number.
struct Digest {
  Hasher hasher;
  void add(std::span<const std::byte> bytes) { hasher.update(bytes); }
  void add(double value) { add(std::as_bytes(std::span(&value, 1))); }
  void add(ShardStore& store, size_t units) {
    for (size_t i = 0; i < units; ++i) {
      const auto lease = store.state(UnitId(static_cast<int32_t>(i)));
      for (Segment segment : kSegments) {
        const StateSpans state = lease->segment(segment);
        add(std::as_bytes(state.master));
        add(std::as_bytes(state.high));
        add(std::as_bytes(state.low));
        add(state.exp_avg.values);
        add(state.exp_avg_sq.values);
      }
    }
  }
};

EmulatedDevice device_of(const Variant& variant) {
  EmulatedDevice device = {.delays = variant.delays};
  static const ScratchDirectory directory;
  if (variant.files) device.make_tiers = file_tiers(directory.path());
  return device;
}

// Of all steps, [step][micro-batch]; made once, for LibTorch's generator belongs to the process.
const std::vector<std::vector<MicroBatch>>& all_batches() {
  static const auto batches = [] {
    std::vector<std::vector<MicroBatch>> made;
    for (uint64_t step = 0; step < 6; ++step) {
      made.emplace_back();
      for (int i = 0; i < 4; ++i) {
        made.back().push_back(small_batch(kPositions - i, step * 4 + static_cast<uint64_t>(i) + 1));
      }
    }
    return made;
  }();
  return batches;
}

uint64_t train(Engine& engine, const ModuleModel& model, const Variant& variant, size_t steps) {
  engine.load([&model](const std::string& name, int64_t begin, std::span<float> out) {
    model.read_initial(name, begin, out);
  });
  const auto ranks = static_cast<size_t>(engine.groups().topology.ranks);
  Digest digest;
  for (size_t step = 0; step < steps; ++step) {
    std::vector<MicroBatch> own;
    for (auto i = static_cast<size_t>(engine.groups().rank.value); i < 4; i += ranks) {
      own.push_back(all_batches()[step][i]);
    }
    const StepUpdate update{.update = engine.updates() + 1, .lr = 0.01};
    const LossSum loss = engine.train_pass(own, 1.0 / 40, update);
    const StepTotals totals = sum_over_ranks(
        engine.groups(),
        {.loss = loss, .unit_squares = engine.take_squares(), .times = {engine.take_times()}});
    digest.add(totals.loss.loss);
    const GradNorm norm = norm_of(totals.unit_squares);
    digest.add(norm.norm);
    if (variant.overlap != UpdateOverlap::kBackward) {
      StepUpdate clipped = update;
      if (variant.clips) clipped.clip_scale = clip_scale(norm.norm, 0.1);
      engine.stage_update(clipped);
    }
    engine.advance_version();
  }
  engine.apply_updates();
  EXPECT_LE(engine.memory().usage().owned, engine.plan().device.owned);
  const auto planned = variant.files ? Bytes{0} : static_cast<Bytes>(steps);  // it counts nothing
  EXPECT_EQ(engine.drive_traffic().read, planned * engine.plan().step.traffic.nvme_read);
  EXPECT_EQ(engine.drive_traffic().written, planned * engine.plan().step.traffic.nvme_written);
  digest.add(engine.store(), model.spec().units.size());
  return digest.hasher.digest();
}

uint64_t train_alone(const Variant& variant, size_t steps) {
  const auto model = make_deep_model();
  Engine engine(model.get(), plan_of(*model, variant, 1), {}, {}, {}, device_of(variant));
  return train(engine, *model, variant, steps);
}

// The digests of all ranks for every variant, over one world.
std::vector<std::vector<uint64_t>> train_ranks(int32_t ranks, const std::vector<Variant>& variants,
                                               size_t steps) {
  std::vector<std::vector<uint64_t>> digests(variants.size(),
                                             std::vector<uint64_t>(static_cast<size_t>(ranks)));
  all_batches();
  costs();
  std::mutex generator;  // LibTorch's, which makes the models
  run_ranks(ranks, [&](World& world) {
    const int32_t rank = world.ranks().rank;
    const ShardTopology topology = make_topology(ShardStrategy::kFullShard, ranks, ranks);
    const auto shards = world.group("shards", topology.shard_group(Rank(rank)));
    const auto gathers = world.group("gathers", topology.shard_group(Rank(rank)));
    for (size_t i = 0; i < variants.size(); ++i) {
      std::unique_lock lock(generator);
      const auto model = make_deep_model();
      lock.unlock();
      // Engines of one process count their temporaries together: the cap is far away.
      Engine engine(model.get(), plan_of(*model, variants[i], ranks), AdamWOptions{},
                    RankGroups{.topology = topology,
                               .rank = Rank(rank),
                               .all = &world.all(),
                               .shards = shards.get(),
                               .gathers = gathers.get()},
                    RunKey{}, device_of(variants[i]));
      digests[i][static_cast<size_t>(rank)] = train(engine, *model, variants[i], steps);
      // The other rank may still be reading this one's memory.
      world.all().barrier({"all trained", std::nullopt}).wait();
    }
  });
  return digests;
}

TEST(OverlappedStep, OneRankGivesTheSameBits) {
  for (const bool clips : {true, false}) {
    const uint64_t expected = train_alone({.prefetch = 0, .clips = clips}, 6);
    std::vector<UpdateOverlap> overlaps = {UpdateOverlap::kNone, UpdateOverlap::kForward};
    if (!clips) overlaps.push_back(UpdateOverlap::kBackward);
    uint64_t seed = 1;
    for (const UpdateOverlap overlap : overlaps) {
      for (const int64_t prefetch : {0, 1, 2, 3}) {
        for (const InputHome inputs : {InputHome::kDevice, InputHome::kHost, InputHome::kNvme}) {
          const Variant variant{.prefetch = prefetch,
                                .recompute = (seed % 2) == 0,
                                .inputs = inputs,
                                .overlap = overlap,
                                .clips = clips,
                                .delays = StreamDelays{.seed = seed, .most_microseconds = 300}};
          ++seed;
          EXPECT_EQ(train_alone(variant, 6), expected) << variant.text();
        }
      }
    }
  }
}

// Where the bytes are is a type that the engine does not know.
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

// A pairwise cover of what may not matter, at every number of ranks on its own.
std::vector<Variant> cover(bool clips) {
  std::vector<Variant> variants = {{.prefetch = 0, .clips = clips}};
  std::vector<UpdateOverlap> overlaps = {UpdateOverlap::kNone, UpdateOverlap::kForward};
  if (!clips) overlaps.push_back(UpdateOverlap::kBackward);
  for (size_t o = 0; o < overlaps.size(); ++o) {
    for (size_t p = 0; p < 4; ++p) {
      // Two columns and their sum: every pair of values of every two columns is there.
      const size_t low = (p + o) % 2;
      const size_t high = (p / 2 + o) % 2;
      const uint64_t seed = 1 + o * 4 + p;
      variants.push_back(
          {.prefetch = static_cast<int64_t>(p),
           .recompute = low == 0,
           .inputs =
               high == 0 ? (low == 0 ? InputHome::kHost : InputHome::kNvme) : InputHome::kDevice,
           .overlap = overlaps[o],
           .clips = clips,
           .gather = (p + p / 2 + o) % 2 == 0 ? GatherMode::kHost : GatherMode::kCollective,
           .delays = StreamDelays{.seed = seed, .most_microseconds = 300}});
    }
  }
  return variants;
}

class OverlappedRanks : public testing::TestWithParam<int32_t> {};

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

TEST(OverlappedStep, DelaysChangeNothingOnTwoRanks) {
  expect_same_bits(delayed(40));
}

// A minute or two.
TEST(LongOverlappedStep, AThousandDelaysChangeNothingOnTwoRanks) {
  expect_same_bits(delayed(1000));
}

// The engine's thread waits for the pass and for the totals, whatever the number of units.
TEST(OverlappedStep, WaitsOnTheHostAreTheNamedOnes) {
  const auto model = make_deep_model();
  for (const UpdateOverlap overlap : {UpdateOverlap::kNone, UpdateOverlap::kForward}) {
    const Variant variant{.overlap = overlap};
    Engine engine(model.get(), plan_of(*model, variant, 1), {});
    train(engine, *model, variant, 4);
    std::map<std::string, int64_t> waits;
    for (const auto& [reason, count] : engine.host_waits().counts()) waits[reason] = count;
    const int64_t updates =
        overlap == UpdateOverlap::kNone ? 4 : 1;  // forward: the flush at the end
    EXPECT_EQ(waits, (std::map<std::string, int64_t>{{"the train pass", 4}, {"updates", updates}}));
  }
}

// The checks behind the validator: schedules that forget something are found while they run.
TEST(OverlappedStep, BrokenSchedulesAreFound) {
  const auto model = make_deep_model();
  const Variant variant{.overlap = UpdateOverlap::kForward,
                        .delays = StreamDelays{.seed = 5, .most_microseconds = 2000}};
  const TierPlan good = plan_of(*model, variant, 1);
  const auto breaks = [&](const std::function<void(StepSchedule&)>& change) {
    TierPlan plan = good;
    change(plan.step.schedules.train);
    Engine engine(model.get(), plan, {}, {}, {}, {.delays = variant.delays});
    EXPECT_THROW(train(engine, *model, variant, 3), CheckFailure);
  };
  const auto first_of = [](StepSchedule& schedule, OpKind kind, size_t skip) -> Op& {
    for (Op& op : schedule.ops) {
      if (op.kind == kind && skip-- == 0) return op;
    }
    throw std::logic_error("no such operation");
  };
  // A slot is filled while it is read, a unit is computed before it is there, a gradient buffer is
  // taken before it is drained, a unit is fetched before its update, drained twice.
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
      if (op.kind == OpKind::kBackward) op.gradient = op.gradient ? std::optional(0) : std::nullopt;
      if (op.kind == OpKind::kDrain) op.gradient = op.gradient ? std::optional(0) : std::nullopt;
    }
  });
  breaks([&](StepSchedule& s) {
    s.ops.push_back(first_of(s, OpKind::kDrain, 1));
    s.ops.back().gradient.reset();
  });
}

// The ring of gradients at home knows who has which place: a place whose update has not run, or is
// another unit's, is not taken.
TEST(OverlappedStep, BrokenTurnsAtHomeAreFound) {
  const auto model = make_deep_model();
  const auto fails = [&](const TierPlan& plan, const std::string& part) {
    Engine engine(model.get(), plan, {});
    try {
      train(engine, *model, {.overlap = plan.step.overlap, .clips = false}, 1);
      ADD_FAILURE() << "no error: " << part;
    } catch (const CheckFailure& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const TierPlan good = plan_of(*model, {.overlap = UpdateOverlap::kBackward}, 1);
  // No update ever frees a place.
  TierPlan early = plan_of(*model, {.overlap = UpdateOverlap::kNone}, 1);
  early.host.gradient_ring = good.host.gradient_ring;
  early.host.gradients = good.host.gradients;
  int32_t drains = 0;
  for (Op& op : early.step.schedules.train.ops) {
    if (op.kind == OpKind::kDrain) op.home = drains++ % 2;
  }
  fails(early, "place at home 0 still has unit 6; unit 4 may not take it");
  // The last unit's update comes before its drain, then looks into the other place.
  TierPlan hasty = good;
  for (Op& op : hasty.step.schedules.train.ops) {
    if (op.kind == OpKind::kUpdate) op.after.clear();
  }
  fails(hasty, "place at home 0 has unit -1, not 6");
  TierPlan lost = good;
  for (Op& op : lost.step.schedules.train.ops) {
    if (op.kind == OpKind::kUpdate) op.home = 1 - *op.home;
  }
  fails(lost, "place at home 1 has unit ");
}

}  // namespace
}  // namespace longshore
