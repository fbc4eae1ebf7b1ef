// Tensors that units pass on unchanged, and sums that units add to, are kept once or not at all,
// and give the bits of a model whose units return copies.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/errors.h"
#include "offload/engine/engine.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/machine.h"
#include "tests/engine/small_model.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

constexpr int64_t kPositions = 21;  // an odd number, so that 16-bit tensors end inside a word
constexpr int kParts = 3;
constexpr int kBlocks = 2;

// Declared: the units' declarations of the carry between parts of a block (x, its tanh, the sum).
// `resident` is for x and its tanh.
struct Declared {
  std::optional<int32_t> x = 0, normed = 1;
  bool running = true, resident = false;
};
constexpr Declared kCopies = {.x = std::nullopt, .normed = std::nullopt, .running = false};

void randomise(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) parameter.normal_(0.0, 0.5);
}

using Part = std::function<at::Tensor(const at::Tensor& sum, const at::Tensor& branch)>;

// Parts return x and its tanh themselves where these are declared to pass, else copies of them.
void add_block(ModuleModel& model, int block, const Declared& declared, const Part& add) {
  const std::string name = "block." + std::to_string(block);
  const auto carry = [&](bool first) {
    return std::vector<CarryTensorSpec>{
        {.elements_per_position = kSmallHidden,
         .passes = first ? std::nullopt : declared.x,
         .resident = declared.resident},
        {.elements_per_position = kSmallHidden,
         .passes = first ? std::nullopt : declared.normed,
         .resident = declared.resident},
        {.elements_per_position = kSmallHidden, .wide = true, .running = declared.running}};
  };
  torch::nn::Linear before(kSmallHidden, kSmallHidden);
  randomise(*before);
  model.add_unit(
      name + ".first", before.ptr(),
      [before](const Carry& in, const MicroBatch&) mutable {
        return Carry{in[0] * 1.0, torch::tanh(before(in[0])), torch::zeros_like(in[0])};
      },
      carry(true));
  for (int part = 0; part < kParts; ++part) {
    torch::nn::Linear branch(kSmallHidden, kSmallHidden);
    randomise(*branch);
    model.add_unit(
        name + ".part." + std::to_string(part), branch.ptr(),
        [branch, declared, add](const Carry& in, const MicroBatch&) mutable {
          return Carry{declared.x ? in[0] : in[0].clone(), declared.normed ? in[1] : in[1].clone(),
                       add(in[2], torch::sin(branch(in[1])))};
        },
        carry(false));
  }
  torch::nn::Linear behind(kSmallHidden, kSmallHidden);
  randomise(*behind);
  model.add_unit(name + ".last", behind.ptr(),
                 [behind](const Carry& in, const MicroBatch&) mutable {
                   return Carry{in[0] + in[2] + behind(in[1])};
                 },
                 {{kSmallHidden}});
}

std::unique_ptr<ModuleModel> make_parted_model(
    const Declared& declared,
    const Part& add = [](const at::Tensor& sum, const at::Tensor& branch) {
      return sum + branch;
    }) {
  torch::manual_seed(3);
  auto model = std::make_unique<ModuleModel>();
  torch::nn::Embedding table(kSmallVocabulary, kSmallHidden);
  randomise(*table);
  model->add_unit(
      "table", table.ptr(),
      [table](const Carry&, const MicroBatch& batch) mutable { return Carry{table(batch.tokens)}; },
      {{kSmallHidden}});
  for (int block = 0; block < kBlocks; ++block) add_block(*model, block, declared, add);
  torch::nn::Linear scores(kSmallHidden, kSmallVocabulary);
  randomise(*scores);
  model->add_loss("scores", scores.ptr(),
                  [scores](const Carry& in, const MicroBatch&) mutable { return scores(in[0]); });
  return model;
}

enum class InputTier { kDevice, kHost, kDrives };

TierPlan plan_of(const Model& model, InputTier tier, int64_t prefetch, bool recompute) {
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs =
      unit_costs(model, DType::kF32, 1, {.positions = kPositions, .longest_document = kPositions});
  inputs.state = {.format = StateFormat::kFp32, .compute = DType::kF32, .drain = DType::kF32};
  inputs.topology = make_topology(ShardStrategy::kFullShard, 1, 1);
  inputs.sequences_per_step = 2;
  inputs.max_tokens = kPositions;
  inputs.prefetch = prefetch;
  inputs.recompute = recompute;
  inputs.offload_inputs = tier != InputTier::kDevice;
  inputs.nvme.inputs = tier == InputTier::kDrives;
  static const ScratchDirectory drive;
  if (inputs.nvme.inputs) inputs.nvme.directories = {drive.path()};
  inputs.device_cap = 2 * kGiB;
  return make_tier_plan(inputs, probe_machine());
}

// Returns losses and gradient norms of four steps, and the loss of an evaluation after them.
std::vector<double> train(const ModuleModel& model, const TierPlan& plan) {
  Engine engine(&model, plan, std::make_unique<AdamWRule>(AdamWOptions{}));
  engine.load([&model](const std::string& name, int64_t begin, std::span<float> out) {
    model.read_initial(name, begin, out);
  });
  std::vector<double> numbers;
  const std::vector<MicroBatch> batches = {small_batch(kPositions, 1), small_batch(17, 2)};
  for (int64_t step = 1; step <= 4; ++step) {
    const StepUpdate update{.update = step, .lr = 0.01};
    numbers.push_back(engine.train_pass(batches, 1.0 / 40, update).loss);
    numbers.push_back(norm_of(engine.take_squares()).norm);
    engine.stage_update(update);
    engine.advance_version();
  }
  numbers.push_back(engine.evaluate(batches).loss);
  return numbers;
}

// Declared passing tensors and running sums give the bits of copies.
TEST(PassingCarry, GivesTheBitsOfCopies) {
  const auto copies = make_parted_model(kCopies);
  const std::vector<double> expected =
      train(*copies, plan_of(*copies, InputTier::kDevice, 0, true));
  const std::vector<Declared> all = {{},
                                     {.x = std::nullopt},
                                     {.normed = std::nullopt},
                                     {.running = false},
                                     {.resident = true},
                                     {.running = false, .resident = true}};
  for (const Declared& declared : all) {
    const auto model = make_parted_model(declared);
    for (const InputTier tier : {InputTier::kDevice, InputTier::kHost, InputTier::kDrives}) {
      for (const int64_t prefetch : {0, 1, 2}) {
        for (const bool recompute : {true, false}) {
          EXPECT_EQ(train(*model, plan_of(*model, tier, prefetch, recompute)), expected)
              << static_cast<int>(tier) << " " << prefetch << " " << recompute;
        }
      }
    }
  }
}

// A passing tensor is planned once: x before each block, x and its tanh in it, x before the loss.
// The last two stay in slots.
TEST(PassingCarry, IsPlannedOnce) {
  const auto model = make_parted_model({});
  const Bytes tensor = align_up(kPositions * kSmallHidden * 4, 256);
  const Bytes pair = align_up(2 * kPositions * kSmallHidden * 4, 256);
  const TierPlan device = plan_of(*model, InputTier::kDevice, 1, true);
  Bytes kept = 0;
  for (const PlannedBuffer& buffer : device.device.buffers) {
    if (buffer.key.kind == BufferKind::kInput) kept += buffer.bytes;
  }
  EXPECT_EQ(kept, 2 * (3 * tensor + 2 * pair));
  const TierPlan host = plan_of(*model, InputTier::kHost, 1, true);
  EXPECT_EQ(host.host.inputs, 2 * (2 * tensor + pair));
  EXPECT_EQ(host.step.traffic.h2d - device.step.traffic.h2d, host.host.inputs);
  EXPECT_EQ(host.step.traffic.d2h - device.step.traffic.d2h, host.host.inputs);
  EXPECT_EQ(host.device.buffer(InputSlot(0))->bytes, 2 * pair);
}

// Resident tensors have a buffer of their own and leave the device on no tier. x before each block
// and before the loss is offloaded, but for the last two.
TEST(PassingCarry, KeepsResidentTensorsOnTheDevice) {
  const auto model = make_parted_model({.resident = true});
  const Bytes tensor = align_up(kPositions * kSmallHidden * 4, 256);
  const Bytes resident = 2 * align_up(kBlocks * 2 * kPositions * kSmallHidden * 4, 256);
  const TierPlan device = plan_of(*model, InputTier::kDevice, 1, true);
  EXPECT_EQ(device.device.buffer(BufferKind::kResidentInputs)->bytes, resident);
  const TierPlan host = plan_of(*model, InputTier::kHost, 1, true);
  EXPECT_EQ(host.device.buffer(BufferKind::kResidentInputs)->bytes, resident);
  EXPECT_EQ(host.host.inputs, 2 * tensor);
  EXPECT_EQ(host.device.buffer(InputSlot(0))->bytes, 2 * tensor);
  const auto passing = make_parted_model({});
  EXPECT_EQ(
      plan_of(*passing, InputTier::kDevice, 1, true).device.buffer(BufferKind::kResidentInputs),
      nullptr);
}

// A unit that returns another tensor than the one it declares to pass is refused.
TEST(PassingCarry, RefusesAnotherTensorThanTheOneThatPasses) {
  const auto copying = make_parted_model(kCopies);
  // The parts return copies, but the spec says that they pass the tensor on.
  class Lying : public Model {
   public:
    explicit Lying(const ModuleModel& model) : model_(model), spec_(model.spec()) {
      spec_.units.at(2).carry_out.at(1).passes = 1;
    }
    const ModelSpec& spec() const override { return spec_; }
    const Unit& unit(UnitId id) const override { return model_.unit(id); }
    const LossUnit& loss_unit() const override { return model_.loss_unit(); }

   private:
    const ModuleModel& model_;
    ModelSpec spec_;
  } lying(*copying);
  try {
    plan_of(lying, InputTier::kDevice, 1, true);
    ADD_FAILURE() << "accepted";
  } catch (const CheckFailure& error) {
    EXPECT_NE(std::string(error.what())
                  .find("unit block.0.part.0 says that carry tensor 1 passes "
                        "tensor 1 of its input, and returned another"),
              std::string::npos)
        << error.what();
  }
}

// A running tensor that backward needs is refused: a square saves its input, and autograd finds it
// overwritten when the unit is measured.
TEST(PassingCarry, RefusesARunningTensorThatBackwardNeeds) {
  const auto model = make_parted_model(
      {}, [](const at::Tensor& sum, const at::Tensor& branch) { return sum * sum + branch; });
  EXPECT_THROW(plan_of(*model, InputTier::kDevice, 1, true), c10::Error);
}

}  // namespace
}  // namespace longshore
