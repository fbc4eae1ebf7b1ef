// Decoding with states on the engine: a call has the new rows of its sequences alone. Weights that
// stay in their slots and weights that pass give the same bits, and what runs between calls leaves
// the states as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "offload/engine/engine.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/decode_plan.h"
#include "tests/engine/file_tier.h"
#include "tests/engine/small_model.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

constexpr int64_t kLayers = 4;
constexpr int64_t kPositions = 24;

using Tokens = std::vector<int64_t>;

// Adds to each row the sum of what the layer makes of its document's rows so far. Where the batch
// continues sequences, the sum goes on from the sequence's state.
Carry sum_so_far(torch::nn::Linear& layer, int64_t number, const Carry& in,
                 const MicroBatch& batch) {
  std::vector<at::Tensor> rows;
  for (size_t d = 0; d + 1 < batch.document_starts.size(); ++d) {
    const int64_t begin = batch.document_starts[d], end = batch.document_starts[d + 1];
    const at::Tensor made = torch::tanh(layer(in[0].slice(0, begin, end)));
    if (batch.continued == nullptr) {
      rows.push_back(at::cumsum(made, 0));
      continue;
    }
    const at::Tensor sum = batch.continued->states->of(number, batch.continued->slots[d]).front();
    if (batch.continued->before[d] == 0) sum.zero_();
    for (int64_t row = 0; row < end - begin; ++row) {
      sum.add_(made[row]);
      rows.push_back(sum.clone().unsqueeze(0));
    }
  }
  return {in[0] + 0.3 * at::cat(rows)};
}

// A table, layers that keep a sum of each sequence, and a head.
class SummingModel : public ModuleModel {
 public:
  SummingModel() {
    torch::manual_seed(5);
    const std::vector<CarryTensorSpec> carry = {{kSmallHidden}};
    torch::nn::Embedding table(kSmallVocabulary, kSmallHidden);
    randomise(*table);
    add_unit(
        "table", table.ptr(),
        [table](const Carry&, const MicroBatch& batch) mutable {
          return Carry{table(batch.tokens)};
        },
        carry);
    for (int64_t i = 0; i < kLayers; ++i) {
      torch::nn::Linear layer(kSmallHidden, kSmallHidden);
      randomise(*layer);
      add_unit(
          "layer." + std::to_string(i), layer.ptr(),
          [layer, i](const Carry& in, const MicroBatch& batch) mutable {
            return sum_so_far(layer, i, in, batch);
          },
          carry);
    }
    torch::nn::Linear scores(kSmallHidden, kSmallVocabulary);
    randomise(*scores);
    add_loss("scores", scores.ptr(),
             [scores](const Carry& in, const MicroBatch&) mutable { return scores(in[0]); });
  }

  std::optional<std::vector<LayerState>> layer_states(const StateUse& use) const override {
    std::vector<LayerState> layers;
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back({.layer = i,
                        .tensors = {{.name = "sum", .shape = {kSmallHidden}},
                                    {.name = "rows", .shape = {use.longest, kSmallHidden}}}});
    }
    return layers;
  }

 private:
  static void randomise(torch::nn::Module& module) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) parameter.normal_(0.0, 0.5);
  }
};

DecodeUse use_of(const Model& model, int64_t sequences) {
  return {
      .sequences = sequences, .longest = kPositions, .sequence_bytes = [&model](int64_t tokens) {
        return bytes_of_sequence(*model.layer_states({.longest = tokens}));
      }};
}

PlanInputs inputs_of(const Model& model) {
  // Measured before the engines, because LibTorch's memory counts for the whole process.
  static const UnitCosts costs = unit_costs(
      SummingModel(), DType::kF32, 1, {.positions = kPositions, .longest_document = kPositions});
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = costs;
  inputs.state = {.format = StateFormat::kFp32, .compute = DType::kF32, .drain = DType::kF32};
  inputs.topology = make_topology(ShardStrategy::kFullShard, 1, 1);
  inputs.sequences_per_step = 2;
  inputs.max_tokens = kPositions;
  return inputs;
}

// Returns the plan of a process that decodes alone, with weights that stay or pass.
TierPlan plan_alone(const Model& model, int64_t sequences, bool stays) {
  PlanInputs inputs = inputs_of(model);
  if (stays) return make_decoding_plan(inputs, probe_machine(), use_of(model, sequences));
  inputs.decode = use_of(model, sequences);
  inputs.decode.alone = true;
  inputs.sequences_per_step = 1;
  inputs.offload_inputs = true;
  inputs.overlap = UpdateOverlap::kNone;
  return make_tier_plan(inputs, probe_machine());
}

// Returns the plan of a run that trains, and decodes between steps.
TierPlan plan_beside_training(const Model& model, bool stays, const std::string& drive = "") {
  PlanInputs inputs = inputs_of(model);
  inputs.decode = use_of(model, 3);
  inputs.decode.weights_stay = stays;
  inputs.nvme.state = inputs.nvme.parameters = !drive.empty();
  if (!drive.empty()) inputs.nvme.directories = {drive};
  return make_tier_plan(inputs, probe_machine());
}

std::unique_ptr<Engine> engine_of(const SummingModel& model, const TierPlan& plan,
                                  const EmulatedDevice& device = {}) {
  auto engine = std::make_unique<Engine>(&model, plan, std::make_unique<AdamWRule>(AdamWOptions{}),
                                         RankGroups{}, RunKey{}, device);
  engine->load([&model](const std::string& name, int64_t begin, std::span<float> out) {
    model.read_initial(name, begin, out);
  });
  return engine;
}

// One micro-batch of documents, each behind `before` positions of its text.
MicroBatch batch_of(const std::vector<Tokens>& documents, const std::vector<int64_t>& before) {
  Tokens tokens, positions;
  MicroBatch batch;
  batch.document_starts = {0};
  for (size_t d = 0; d < documents.size(); ++d) {
    for (size_t row = 0; row < documents[d].size(); ++row) {
      tokens.push_back(documents[d][row]);
      positions.push_back(before[d] + static_cast<int64_t>(row));
    }
    batch.document_starts.push_back(static_cast<int64_t>(tokens.size()));
  }
  batch.tokens = at::tensor(tokens, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  return batch;
}

// Returns the scores behind the last row of each document.
at::Tensor last_scores(Engine& engine, const MicroBatch& batch) {
  Tokens last;
  for (size_t d = 1; d < batch.document_starts.size(); ++d) {
    last.push_back(batch.document_starts[d] - 1);
  }
  return engine.logits(batch, at::tensor(last, at::kLong)).clone();
}

// Texts that grow by their likeliest tokens; text i is in the engine's slot i.
class GrowingTexts {
 public:
  explicit GrowingTexts(Engine* engine, std::vector<Tokens> prompts)
      : engine_(*engine), texts_(std::move(prompts)), done_(texts_.size(), 0) {}

  // Computes what is new of every text, and adds its likeliest token.
  void grow() {
    std::vector<Tokens> rows;
    ContinuedSequences continued{.states = engine_.sequence_states()};
    for (size_t i = 0; i < texts_.size(); ++i) {
      rows.emplace_back(texts_[i].begin() + done_[i], texts_[i].end());
      continued.slots.push_back(SequenceSlot(static_cast<int32_t>(i)));
      continued.before.push_back(done_[i]);
      done_[i] = static_cast<int64_t>(texts_[i].size());
    }
    MicroBatch batch = batch_of(rows, continued.before);
    batch.continued = &continued;
    scores_.push_back(last_scores(engine_, batch));
    const at::Tensor best = scores_.back().argmax(1);
    for (size_t i = 0; i < texts_.size(); ++i) {
      texts_[i].push_back(best[static_cast<int64_t>(i)].item<int64_t>());
    }
  }
  void grow(int times) {
    for (int i = 0; i < times; ++i) grow();
  }

  const std::vector<Tokens>& texts() const { return texts_; }
  const std::vector<at::Tensor>& scores() const { return scores_; }  // by call

 private:
  Engine& engine_;
  std::vector<Tokens> texts_;
  std::vector<int64_t> done_;  // by text: positions that its state has
  std::vector<at::Tensor> scores_;
};

const std::vector<Tokens> kPrompts = {{1, 2, 3, 4, 5}, {6}, {7, 8}};

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "call " << i;
}

void train_step(Engine& engine, int64_t step) {
  const std::vector<MicroBatch> batches = {small_batch(kPositions, 1), small_batch(17, 2)};
  const StepUpdate update{.update = step, .lr = 0.01};
  engine.train_pass(batches, 1.0 / 40, update);
  engine.take_squares();
  engine.stage_update(update);
  engine.advance_version();
}

// Goal: a text that grows row by row has the scores of the whole text computed at once.
TEST(Decoding, GivesTheScoresOfWholeTexts) {
  const SummingModel model;
  const auto engine = engine_of(model, plan_alone(model, 3, true));
  GrowingTexts growing(engine.get(), kPrompts);
  growing.grow(6);
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    const Tokens& text = growing.texts()[i];
    for (size_t call = 0; call < growing.scores().size(); ++call) {
      const auto end = static_cast<std::ptrdiff_t>(kPrompts[i].size() + call);
      const Tokens whole(text.begin(), text.begin() + end);
      EXPECT_TRUE(at::allclose(last_scores(*engine, batch_of({whole}, {0}))[0],
                               growing.scores()[call][static_cast<int64_t>(i)], 1e-5, 1e-5))
          << "text " << i << ", call " << call;
    }
  }
}

// Goal: the same bits with weights that stay and that pass, from host memory and from files, alone
// and beside training; peaks of memory within each plan.
TEST(Decoding, HasTheSameBitsHoweverWeightsReachTheDevice) {
  const SummingModel model;
  const ScratchDirectory drive;
  const EmulatedDevice files = {.make_tiers = file_tiers(drive.path())};
  std::vector<at::Tensor> expected;
  const auto check = [&](const TierPlan& plan, const EmulatedDevice& device) {
    EXPECT_EQ(plan.step.moved_by_forward() == 0, plan.decode.weights_stay);
    const auto engine = engine_of(model, plan, device);
    GrowingTexts growing(engine.get(), kPrompts);
    growing.grow(6);
    if (expected.empty()) expected = growing.scores();
    expect_same_bits(growing.scores(), expected);
    EXPECT_EQ(engine->memory().usage().owned, plan.device.owned);
    EXPECT_LE(engine->memory().usage().peak(), plan.device.total);
  };
  for (const bool stays : {true, false}) {
    check(plan_alone(model, 3, stays), {});
    check(plan_beside_training(model, stays), {});
    check(plan_beside_training(model, stays, drive.path()), files);
  }
}

// Goal: with weights that stay only the first call fetches; new parameters are fetched once again.
TEST(Decoding, FetchesWeightsOnceForEachVersion) {
  const SummingModel model;
  const auto engine = engine_of(model, plan_beside_training(model, true));
  int64_t fetches = 0;
  engine->set_observer([&fetches](const StepSchedule& schedule, std::span<const OpTime>) {
    fetches += std::ranges::count(schedule.ops, OpKind::kFetch, &Op::kind);
  });
  const auto fetches_of = [&](const std::function<void()>& work) {
    fetches = 0;
    work();
    return fetches;
  };
  const int64_t units = kLayers + 2;
  GrowingTexts growing(engine.get(), kPrompts);
  EXPECT_EQ(fetches_of([&] { growing.grow(); }), units);
  EXPECT_EQ(fetches_of([&] { growing.grow(3); }), 0);
  const std::vector<MicroBatch> evaluated = {small_batch(kPositions, 3)};
  EXPECT_EQ(fetches_of([&] { engine->evaluate(evaluated); }), 0);
  engine->state_sweep().each([](UnitId, ShardStore::StateLease&) {});
  EXPECT_EQ(fetches_of([&] { growing.grow(); }), units) << "a sweep may change parameters";
  train_step(*engine, 1);
  GrowingTexts others(engine.get(), kPrompts);
  EXPECT_EQ(fetches_of([&] { others.grow(2); }), units);
  engine->advance_version();
  EXPECT_EQ(fetches_of([&] { others.grow(2); }), units);
}

// Goal: updates, evaluations, whole texts and sweeps between calls leave the states as they are,
// and the next call has the new weights; after a train pass sequences begin anew.
TEST(Decoding, LeavesStatesAsTheyAreBetweenCalls) {
  const SummingModel model;
  std::vector<std::vector<at::Tensor>> scores;
  for (const bool stays : {true, false}) {
    for (const bool interrupted : {true, false}) {
      const auto engine = engine_of(model, plan_beside_training(model, stays));
      train_step(*engine, 1);
      GrowingTexts growing(engine.get(), kPrompts);  // the first call applies the update
      growing.grow(3);
      if (interrupted) {
        const std::vector<MicroBatch> evaluated = {small_batch(kPositions, 3), small_batch(9, 4)};
        engine->evaluate(evaluated);
        last_scores(*engine, batch_of({{3, 4, 5}}, {0}));
        engine->state_sweep().each([](UnitId, ShardStore::StateLease&) {});
        engine->advance_version();
      }
      growing.grow(3);
      train_step(*engine, 2);
      GrowingTexts again(engine.get(), kPrompts);
      again.grow(3);
      scores.push_back(growing.scores());
      scores.back().insert(scores.back().end(), again.scores().begin(), again.scores().end());
      EXPECT_FALSE(at::equal(growing.scores().front(), again.scores().front()));
    }
  }
  for (const auto& other : scores) expect_same_bits(other, scores.front());
}

// Goal: a cap that holds one sequence alone decodes texts one after the other, with the same
// scores.
TEST(Decoding, ReusesTheOnlySlotThatTheCapHolds) {
  const SummingModel model;
  PlanInputs inputs = inputs_of(model);
  inputs.device_cap = plan_alone(model, 1, true).device.total;
  const TierPlan one = make_decoding_plan(inputs, probe_machine(), use_of(model, 3));
  EXPECT_EQ(one.decode.sequences, 1);
  // Modules point at the slots of one engine, so one engine lives at a time.
  const auto scores_of = [&model](const TierPlan& plan) {
    const auto engine = engine_of(model, plan);
    std::vector<at::Tensor> scores;
    for (const Tokens& prompt : kPrompts) {
      GrowingTexts growing(engine.get(), {prompt});
      growing.grow(4);
      scores.insert(scores.end(), growing.scores().begin(), growing.scores().end());
    }
    return scores;
  };
  expect_same_bits(scores_of(one), scores_of(plan_alone(model, 3, true)));
}

// Goal: calls that would write where no memory is planned are refused, and so is training with a
// plan for decoding alone.
TEST(Decoding, RefusesCallsThatThePlanHasNoMemoryFor) {
  const SummingModel model;
  const auto engine = engine_of(model, plan_alone(model, 2, true));
  SequenceStates* const states = engine->sequence_states();
  ASSERT_NE(states, nullptr);
  const auto refused = [&](ContinuedSequences continued, const std::vector<Tokens>& documents) {
    MicroBatch batch = batch_of(documents, std::vector<int64_t>(documents.size(), 0));
    batch.continued = &continued;
    EXPECT_THROW(last_scores(*engine, batch), CheckFailure);
  };
  const SequenceSlot first(0), second(1);
  refused({.states = nullptr, .slots = {first}, .before = {0}}, {{1}});
  refused({.states = states, .slots = {first}, .before = {0, 0}}, {{1}});
  refused({.states = states, .slots = {first, first}, .before = {0, 0}}, {{1}, {2}});
  refused({.states = states, .slots = {first, SequenceSlot(2)}, .before = {0, 0}}, {{1}, {2}});
  refused({.states = states, .slots = {first, second}, .before = {0, kPositions}}, {{1}, {2}});
  refused({.states = states, .slots = {first, second}, .before = {0, -1}}, {{1}, {2}});
  EXPECT_THROW(train_step(*engine, 1), CheckFailure);
  GrowingTexts growing(engine.get(), {{1, 2}, {3}});
  growing.grow(2);  // the engine still decodes
}

// Goal: a plan that decodes nothing has no states, and a model that cannot continue sequences gets
// no engine that does.
TEST(Decoding, HasNoStatesUnlessThePlanDecodes) {
  const SummingModel model;
  EXPECT_EQ(engine_of(model, make_tier_plan(inputs_of(model), probe_machine()))->sequence_states(),
            nullptr);
  const auto plain = make_small_model(SmallModules(1));
  EXPECT_FALSE(plain->layer_states({}));
  PlanInputs inputs = inputs_of(*plain);
  inputs.costs =
      unit_costs(*plain, DType::kF32, 1, {.positions = kPositions, .longest_document = kPositions});
  inputs.decode = {.sequences = 1, .longest = 4, .sequence_bytes = [](int64_t) { return 64; }};
  EXPECT_THROW(Engine(plain.get(), make_tier_plan(inputs, probe_machine()),
                      std::make_unique<AdamWRule>(AdamWOptions{})),
               CheckFailure);
}

}  // namespace
}  // namespace longshore
