#include "tests/engine/overlapped_steps.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/hash.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/machine.h"
#include "tests/comm/rank_threads.h"
#include "tests/engine/file_tier.h"
#include "tests/engine/small_model.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

constexpr int64_t kPositions = 12;
constexpr int64_t kLayers = 5;

// A hash of the losses and of everything that the rank keeps.
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
        add(state.frozen);
        for (const MomentSpan& region : state.regions) add(region.values);
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

// The batches of all steps, [step][micro-batch], made once with LibTorch's shared generator.
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

}  // namespace

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

namespace {

// Measures the units before ranks start, because LibTorch's memory counts for the whole process.
const UnitCosts& costs() {
  static const UnitCosts measured =
      unit_costs(*make_deep_model(), DType::kF32, 1,
                 {.positions = kPositions, .longest_document = kPositions});
  return measured;
}

}  // namespace

TierPlan plan_of(const Model& model, const Variant& variant, int32_t ranks) {
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = costs();
  // Split masters are joined for fp32 compute, which shared memory does not support.
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
  inputs.device = variant.device;
  inputs.device_cap = 2 * kGiB;
  TierPlan plan = make_tier_plan(inputs, probe_machine());
  EXPECT_EQ(plan.host.gradient_ring > 0, variant.overlap == UpdateOverlap::kBackward);
  return plan;
}

RankCommunicators::RankCommunicators(World& world, DeviceKind device, bool two) {
  const bool gpu = device == DeviceKind::kCuda;
  const int32_t ranks = world.ranks().size;
  groups = {.topology = make_topology(ShardStrategy::kFullShard, ranks, ranks),
            .rank = Rank(world.ranks().rank),
            .gpu = world.ranks().local_rank,
            .all = &world.all()};
  const std::vector<int32_t> members = groups.topology.shard_group(groups.rank);
  shards = world.group("shards", members);
  if (!gpu || two) gathers = world.group("gathers", members);
  if (gpu) host_shards = world.host_group("shards on the host", members);
  groups.shards = shards.get();
  groups.gathers = gathers ? gathers.get() : shards.get();
  groups.host_shards = host_shards ? host_shards.get() : gathers.get();
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
  const auto planned = variant.files ? Bytes{0} : static_cast<Bytes>(steps);  // not counted
  EXPECT_EQ(engine.drive_traffic().read, planned * engine.plan().step.traffic.nvme_read);
  EXPECT_EQ(engine.drive_traffic().written, planned * engine.plan().step.traffic.nvme_written);
  digest.add(engine.store(), model.spec().units.size());
  return digest.hasher.digest();
}

uint64_t train_alone(const Variant& variant, size_t steps) {
  const auto model = make_deep_model();
  Engine engine(model.get(), plan_of(*model, variant, 1),
                std::make_unique<AdamWRule>(AdamWOptions{}), {}, {}, device_of(variant));
  return train(engine, *model, variant, steps);
}

std::vector<std::vector<uint64_t>> train_ranks(int32_t ranks, const std::vector<Variant>& variants,
                                               size_t steps) {
  std::vector<std::vector<uint64_t>> digests(variants.size(),
                                             std::vector<uint64_t>(static_cast<size_t>(ranks)));
  all_batches();
  costs();
  std::mutex generator;  // LibTorch's generator, which makes the models
  WorldOptions options = quick_options();
  options.device = variants.front().device;
  const auto body = [&](World& world) {
    const RankCommunicators communicators(world, options.device);
    const auto rank = static_cast<size_t>(world.ranks().rank);
    for (size_t i = 0; i < variants.size(); ++i) {
      std::unique_lock lock(generator);
      const auto model = make_deep_model();
      lock.unlock();
      // Engines of one process count their temporaries together, so the cap is high.
      Engine engine(model.get(), plan_of(*model, variants[i], ranks),
                    std::make_unique<AdamWRule>(AdamWOptions{}), communicators.groups, RunKey{},
                    device_of(variants[i]));
      digests[i][rank] = train(engine, *model, variants[i], steps);
      // The barrier keeps this rank's memory alive while the other rank reads it.
      world.all().barrier({"all trained", std::nullopt}).wait();
    }
  };
  run_ranks(ranks, body, options);
  return digests;
}

std::vector<Variant> cover(bool clips) {
  std::vector<Variant> variants = {{.prefetch = 0, .clips = clips}};
  std::vector<UpdateOverlap> overlaps = {UpdateOverlap::kNone, UpdateOverlap::kForward};
  if (!clips) overlaps.push_back(UpdateOverlap::kBackward);
  for (size_t o = 0; o < overlaps.size(); ++o) {
    for (size_t p = 0; p < 4; ++p) {
      // The column of the sum makes every pair of values of any two columns occur.
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

}  // namespace longshore
