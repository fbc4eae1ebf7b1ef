// An update rule that is not AdamW, as the example of one: SGD with momentum, which keeps one
// region. Nothing but the rule knows it: the engine trains with it on the host and on drives, on
// one and two ranks, and its checkpoints and drives are resumed. Its values are those of
// torch::optim::SGD.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <mutex>

#include "base/number_formats.h"
#include "base/quiet_log.h"
#include "model/models/module_model.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/optimizer/adamw.h"
#include "tests/nvme/scratch_file.h"
#include "tests/trainer/engine_run.h"

namespace longshore {
namespace {

constexpr double kSgdMomentum = 0.9;
constexpr double kSgdDecay = 0.01;
constexpr double kSgdRate = 0.5;
constexpr int64_t kSgdWidth = 64;  // of everything: matrices are then no small parameters
constexpr int64_t kSgdPositions = 12;
constexpr int64_t kSgdMicroBatches = 4;
constexpr double kSgdTerms = kSgdMicroBatches * (kSgdPositions - 1);

// SgdRule: g += decay * p; m = momentum * m + g; p -= rate * m.
class SgdRule final : public UpdateRule {
 public:
  static constexpr std::array<StateRegion, 1> kRegions = {
      {{"momentum_buffer", Moment::kFirst, MomentFormat::kF32}}};

  std::span<const StateRegion> regions() const override { return kRegions; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  void stage(const StepUpdate& update) override {
    rate_ = static_cast<float>(update.lr);
    clip_ = static_cast<float>(update.clip_scale);
  }
  void apply(int32_t, const UpdateSlice& slice) const override {
    const bool split = !slice.low.empty();
    const std::span<float> momentum = slice.regions[0].f32();
    const auto* gradient = reinterpret_cast<const float*>(slice.gradient.data());
    for (size_t i = 0; i < slice.elements(); ++i) {
      float p = split ? join_master(slice.high[i], slice.low[i]) : slice.master[i];
      const float g = gradient[i] * clip_ + static_cast<float>(kSgdDecay) * p;
      momentum[i] = static_cast<float>(kSgdMomentum) * momentum[i] + g;
      p -= rate_ * momentum[i];
      if (split) slice.low[i] = master_low(p);
      if (!split) slice.master[i] = p;
      if (!slice.high.empty()) slice.high[i] = master_high(p);
    }
  }

 private:
  float rate_ = 0.0f;
  float clip_ = 1.0f;
};

struct SgdModules {
  torch::nn::Embedding table{torch::nn::EmbeddingOptions(kSgdWidth, kSgdWidth)};
  torch::nn::Linear layer{kSgdWidth, kSgdWidth};
  torch::nn::Linear scores{kSgdWidth, kSgdWidth};

  SgdModules() {
    torch::manual_seed(5);
    const at::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters()) parameter.normal_(0.0, 0.3);
  }
  std::map<std::string, at::Tensor> parameters() {
    return {{"table.weight", table->weight},
            {"layer.weight", layer->weight},
            {"layer.bias", layer->bias},
            {"scores.weight", scores->weight},
            {"scores.bias", scores->bias}};
  }
  at::Tensor hidden_of(const at::Tensor& in) { return in + torch::tanh(layer(in)); }
  std::unique_ptr<ModuleModel> model() const {
    auto model = std::make_unique<ModuleModel>();
    const std::vector<CarryTensorSpec> carry = {{kSgdWidth}};
    model->add_unit(
        "table", table.ptr(),
        [own = *this](const Carry&, const MicroBatch& batch) mutable {
          return Carry{own.table(batch.tokens)};
        },
        carry);
    model->add_unit(
        "layer", layer.ptr(),
        [own = *this](const Carry& in, const MicroBatch&) mutable {
          return Carry{own.hidden_of(in[0])};
        },
        carry);
    model->add_loss(
        "scores", scores.ptr(),
        [own = *this](const Carry& in, const MicroBatch&) mutable { return own.scores(in[0]); });
    return model;
  }
};

// Returns the micro-batches of a step, made once, because LibTorch's generator is shared.
const std::vector<MicroBatch>& sgd_batches(int64_t step) {
  static std::map<int64_t, std::vector<MicroBatch>> made;
  std::vector<MicroBatch>& batches = made[step];
  for (int64_t i = static_cast<int64_t>(batches.size()); i < kSgdMicroBatches; ++i) {
    torch::manual_seed(static_cast<uint64_t>(step * kSgdMicroBatches + i + 1));
    MicroBatch& batch = batches.emplace_back();
    batch.tokens = torch::randint(kSgdWidth, {kSgdPositions}, torch::kLong);
    batch.targets = torch::randint(kSgdWidth, {kSgdPositions}, torch::kLong);
    batch.targets[0] = -100;
    batch.positions = torch::arange(kSgdPositions);
    batch.document_starts = {0, kSgdPositions};
  }
  return batches;
}

// Trains with torch's own optimizer.
SavedState trained_by_torch(int64_t steps) {
  SgdModules modules;
  std::vector<at::Tensor> all;
  for (auto& [name, parameter] : modules.parameters()) all.push_back(parameter);
  torch::optim::SGD optimizer(
      all, torch::optim::SGDOptions(kSgdRate).momentum(kSgdMomentum).weight_decay(kSgdDecay));
  for (int64_t step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    for (const MicroBatch& batch : sgd_batches(step)) {
      const at::Tensor hidden = modules.hidden_of(modules.table(batch.tokens));
      const at::Tensor loss =
          torch::nn::functional::cross_entropy(modules.scores(hidden), batch.targets,
                                               torch::nn::functional::CrossEntropyFuncOptions()
                                                   .reduction(torch::kSum)
                                                   .ignore_index(-100));
      (loss / kSgdTerms).backward();
    }
    optimizer.step();
  }
  SavedState state;
  for (auto& [name, parameter] : modules.parameters()) {
    const auto& kept = static_cast<const torch::optim::SGDParamState&>(
        *optimizer.state().at(parameter.unsafeGetTensorImpl()));
    state[name + ".master"] = floats_of(parameter);
    state[name + ".momentum_buffer"] = floats_of(kept.momentum_buffer());
  }
  return state;
}

struct SgdRun {
  int32_t ranks = 1;
  std::string drive = {};  // the directory of the state on a drive; empty: it is in host memory
};

TierPlan sgd_plan(const Model& model, const SgdRun& run, std::span<const StateRegion> regions) {
  static const UnitCosts costs =
      unit_costs(*SgdModules().model(), DType::kF32, 1,
                 {.positions = kSgdPositions, .longest_document = kSgdPositions});
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = costs;
  inputs.state = {.format = StateFormat::kSplitInt8,
                  .compute = DType::kF32,
                  .drain = DType::kF32,
                  .regions = regions};
  inputs.topology = make_topology(ShardStrategy::kFullShard, run.ranks, run.ranks);
  inputs.ranks_per_node = run.ranks;
  inputs.sequences_per_step = kSgdMicroBatches;
  inputs.max_tokens = kSgdPositions;
  inputs.nvme.state = inputs.nvme.parameters = !run.drive.empty();
  if (inputs.nvme.state) inputs.nvme.directories = {run.drive};
  inputs.device_cap = 2 * kGiB;
  return make_tier_plan(inputs, probe_machine());
}

// Trains up to update `last` and saves a checkpoint in `folder`; returns its path.
std::string run_sgd(const SgdRun& run, int64_t last, const std::string& folder,
                    const std::string& from = "", bool from_drive = false) {
  std::mutex generator;  // of LibTorch, which makes the modules
  sgd_plan(*SgdModules().model(), run, SgdRule::kRegions);
  for (int64_t step = 1; step <= last; ++step) sgd_batches(step);
  const auto make = [&run, &generator] {
    std::unique_lock lock(generator);
    auto model = SgdModules().model();
    lock.unlock();
    EngineInputs inputs{
        .plan = sgd_plan(*model, run, SgdRule::kRegions),
        .rule = std::make_unique<SgdRule>(),
        .initial = [own = model.get()](
                       const std::string& name, int64_t begin,
                       std::span<float> out) { own->read_initial(name, begin, out); },
        // The update reads and writes both halves and the momentum of each element, and reads a
        // gradient.
        .bytes_of_update = model->spec().trainable_elements() * 20};
    inputs.model = std::move(model);
    return inputs;
  };
  const auto batches = [&run](int64_t step, int32_t rank) {
    const std::vector<MicroBatch>& all = sgd_batches(step);
    std::vector<MicroBatch> own;
    for (auto i = static_cast<size_t>(rank); i < all.size(); i += static_cast<size_t>(run.ranks)) {
      own.push_back(all[i]);
    }
    return own;
  };
  return run_engine({.topology = make_topology(ShardStrategy::kFullShard, run.ranks, run.ranks),
                     .make = make,
                     .batches = batches,
                     .loss_terms = kSgdTerms,
                     .lr = kSgdRate,
                     .from = from,
                     .from_drive = from_drive},
                    last, folder);
}

SavedState sgd_state(const std::string& path) {
  SavedState state = saved_state(path);
  const auto model = SgdModules().model();
  EXPECT_EQ(sgd_plan(*model, {}, SgdRule::kRegions).checkpoint_bytes, bytes_of_values(state));
  return state;
}

void expect_near(const SavedState& got, const SavedState& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, values] : wanted) {
    ASSERT_EQ(got.at(name).size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(got.at(name)[i], values[i], 2e-5) << name << " " << i;
    }
  }
}

// Six steps give the values of torch's optimizer, and the same bits on both tiers.
TEST(SgdRule, GivesTheValuesOfTorchOnEveryTier) {
  const QuietLog quiet;
  const SavedState wanted = trained_by_torch(6);
  for (const int32_t ranks : {1, 2}) {
    const ScratchDirectory folder, drive;
    const SavedState host = sgd_state(run_sgd({ranks}, 6, folder.path() + "/host"));
    expect_near(host, wanted);
    EXPECT_EQ(sgd_state(run_sgd({ranks, drive.path()}, 6, folder.path() + "/drive")), host);
  }
}

// A run that is resumed from a checkpoint on another tier, or from its drive, has the same bits.
TEST(SgdRule, GoesOnFromCheckpointsAndDrives) {
  const QuietLog quiet;
  for (const int32_t ranks : {1, 2}) {
    const ScratchDirectory folder, drive, other;
    const std::string path = folder.path();
    const SavedState whole = sgd_state(run_sgd({ranks}, 6, path + "/whole"));
    const std::string half = run_sgd({ranks, drive.path()}, 3, path + "/half");
    EXPECT_EQ(sgd_state(run_sgd({ranks}, 6, path + "/host", half)), whole);
    EXPECT_EQ(sgd_state(run_sgd({ranks, other.path()}, 6, path + "/other", half)), whole);
    EXPECT_EQ(sgd_state(run_sgd({ranks, drive.path()}, 6, path + "/drive", "", true)), whole);
    EXPECT_EQ(sgd_state(run_sgd({3 - ranks}, 3, path + "/ranks", half)), sgd_state(half));
  }
}

// A state with other regions is refused with both lists, and nothing takes it for AdamW's.
TEST(SgdRule, TheStateOfAnotherRuleIsRefused) {
  const QuietLog quiet;
  const ScratchDirectory folder, drive;
  const std::string path = run_sgd({1, drive.path()}, 1, folder.path());
  const auto model = SgdModules().model();
  RankState adamw(model->spec(), {});
  try {
    Checkpoint::open(path).restore(adamw.model(), adamw.sweep());
    ADD_FAILURE() << "restored";
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("momentum_buffer"), std::string::npos) << text;
    EXPECT_NE(text.find("exp_avg, exp_avg_sq"), std::string::npos) << text;
  }
  Engine engine(model.get(), sgd_plan(*model, {1, drive.path()}, kAdamWRegions),
                std::make_unique<AdamWRule>(AdamWOptions{}), {}, RunKey{{3, 4}});
  EXPECT_THROW(engine.commits().start(17), Error);
  EXPECT_THROW(
      Engine(model.get(), sgd_plan(*model, {}, kAdamWRegions), std::make_unique<SgdRule>()),
      CheckFailure);
}

// A manifest lists each region once, under a name of its own.
TEST(SgdRule, ManifestsWithImpossibleRegionsAreRefused) {
  const auto read = [](const std::vector<CheckpointRegion>& regions) {
    CheckpointManifest manifest;
    manifest.progress = progress_at(2);
    manifest.state_format = "split";
    manifest.regions = regions;
    return parse_manifest(format_manifest(manifest), "manifest.json").regions;
  };
  const std::vector<CheckpointRegion> two = {{"a", Moment::kSecond}, {"b", Moment::kFirst}};
  EXPECT_EQ(read(two), two);
  EXPECT_EQ(read({}), std::vector<CheckpointRegion>());
  EXPECT_THROW(read({{"a"}, {"b"}, {"a"}}), CheckpointError);
  EXPECT_THROW(read({{kMasterKind}}), CheckpointError);
}

}  // namespace
}  // namespace longshore
