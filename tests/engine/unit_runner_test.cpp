#include "offload/engine/unit_runner.h"

#include <gtest/gtest.h>

#include "device/copy_engine.h"
#include "model/models/grouped_model.h"
#include "offload/staging/prefetcher.h"
#include "pinned/pinned_store.h"
#include "shard/load_parameters.h"
#include "tests/engine/small_model.h"
#include "tests/fakes/sweep_in_order.h"

namespace longshore {
namespace {

constexpr int64_t kPositions = 16;

// SmallRun: a runner over a small model with its memory, built as the engine does.
struct SmallRun {
  SmallRun(const Model& small, const ModuleModel& initial, int32_t kept_graphs, int slots,
           int micro_batches)
      : model(&small),
        layouts(make_layouts(small.spec(), 1, DType::kF32)),
        store(layouts,
              {.format = StateFormat::kSplit, .compute = DType::kF32, .drain = DType::kF32}, false,
              &pool) {
    load_parameters(sweep_in_order(store, small.spec()), small.spec(), layouts, Rank(0),
                    [&](const std::string& name, int64_t begin, std::span<float> out) {
                      initial.read_initial(name, begin, out);
                    });
    Bytes largest = 0;
    for (const FlatLayout& layout : layouts) {
      largest = std::max(largest, layout.flat_bytes());
    }
    std::vector<std::span<std::byte>> ring_memory;
    for (int i = 0; i < slots; ++i) ring_memory.push_back(take(largest));
    ring = std::make_unique<StageRing>(ring_memory);
    prefetcher = std::make_unique<Prefetcher>(Prefetcher::Parts{.store = &store,
                                                                .ring = ring.get(),
                                                                .copies = &copies,
                                                                .layouts = &layouts,
                                                                .shard = Rank(0)});
    PassInputs inputs;
    for (const FlatLayout& layout : layouts) {
      inputs.unit_bytes.push_back(layout.flat_bytes());
    }
    inputs.slot_bytes.assign(static_cast<size_t>(slots), largest);
    pass = plan_pass(small.spec(), Pass::kTrain, inputs);
    UnitRunner::Memory memory;
    memory.gradients = {take(largest)};
    memory.waiting_gradients.resize(small.spec().units.size());
    const Bytes carry_bytes = kPositions * kSmallHidden * 4;
    for (size_t u = 1; u < small.spec().units.size(); ++u) {
      memory.carry.inputs.emplace_back();
      for (int i = 0; i < micro_batches; ++i) {
        memory.carry.inputs.back().push_back(take(carry_bytes));
      }
    }
    for (int i = 0; i < micro_batches; ++i) memory.carry.gradients.push_back(take(carry_bytes));
    runner =
        std::make_unique<UnitRunner>(&small, &layouts, DType::kF32, kept_graphs, std::move(memory));
  }
  std::span<std::byte> take(Bytes bytes) {
    blocks.emplace_back(static_cast<size_t>(bytes));
    return blocks.back();
  }
  SmallRun(const ModuleModel& small, int32_t kept_graphs, int slots, int micro_batches)
      : SmallRun(small, small, kept_graphs, slots, micro_batches) {}

  // Returns one step's gradients by unit.
  std::vector<std::vector<float>> gradients(const std::vector<MicroBatch>& batches, double scale) {
    runner->begin_step(batches, scale);
    prefetcher->set_version(StateVersion(prefetcher->version().value + 1));
    std::vector<std::vector<float>> all(model->spec().units.size());
    for (size_t i = 0; i < pass.executions.size(); ++i) {
      const UnitExecution& execution = pass.executions[i];
      for (const Placed& placed : execution.fetches) prefetcher->fetch(placed, std::nullopt);
      std::vector<UnitLease> leases;
      for (const Placed& placed : execution.leases) {
        leases.push_back(ring->lease(placed, prefetcher->version()));
      }
      if (i + 1 < model->spec().units.size()) {
        runner->forward(execution.unit, leases);
        continue;
      }
      const bool trains = model->spec().unit(execution.unit).has_trainable();
      const auto buffer = trains ? std::optional(GradientBuffer(0)) : std::nullopt;
      runner->backward(execution.unit, leases, buffer);
      const std::span<const float> sums = runner->sums(execution.unit, buffer);
      all[static_cast<size_t>(execution.unit.value)].assign(sums.begin(), sums.end());
    }
    return all;
  }

  const Model* model;
  PassPlan pass;
  std::vector<FlatLayout> layouts;
  WorkerPool pool{1};
  PinnedStore store;
  CpuCopyEngine copies;
  std::deque<std::vector<std::byte>> blocks;
  std::unique_ptr<StageRing> ring;
  std::unique_ptr<Prefetcher> prefetcher;
  std::unique_ptr<UnitRunner> runner;
};

std::vector<MicroBatch> three_batches() {
  return {small_batch(16, 1), small_batch(7, 2), small_batch(12, 3)};
}

// The runner's gradients equal autograd's within 1e-5 (fp32, other order of sums).
TEST(UnitRunner, GivesTheGradientsOfOneGraph) {
  const std::vector<MicroBatch> batches = three_batches();
  SmallModules plain(5);
  double loss = 0.0;
  for (const MicroBatch& batch : batches) {
    const at::Tensor sum = plain.loss_sum(batch);
    (sum * 0.25).backward();
    loss += sum.item<double>();
  }
  const auto model = make_small_model(SmallModules(5));
  SmallRun run(*model, 0, 2, 3);
  const auto gradients = run.gradients(batches, 0.25);

  EXPECT_NEAR(run.runner->loss().loss, loss, 1e-4);
  EXPECT_EQ(run.runner->loss().trained, 16 + 7 + 12 - 3);
  for (size_t u = 0; u < 4; ++u) {
    const std::vector<at::Tensor> expected = plain.modules()[u]->parameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      const ElementRange range = run.layouts[u].parameter(static_cast<int32_t>(i));
      const at::Tensor got =
          at::from_blob(const_cast<float*>(gradients[u].data()) + range.begin, expected[i].sizes());
      EXPECT_LE((got - expected[i].grad()).norm().item<double>(),
                1e-5 * expected[i].grad().norm().item<double>())
          << "unit " << u << " parameter " << i;
    }
  }
}

// Modules grouped into one unit read their parameters from the group's slot, also in the loss.
TEST(UnitRunner, GroupsOfModulesGiveTheBitsOfSingleOnes) {
  const std::vector<MicroBatch> batches = three_batches();
  const auto alone_model = make_small_model(SmallModules(5));
  SmallRun alone(*alone_model, 0, 2, 3);
  const auto expected = alone.gradients(batches, 0.25);

  const auto members = make_small_model(SmallModules(5));
  const GroupedModel groups(members.get(), {{UnitId(0), UnitId(1)}, {UnitId(2), UnitId(3)}});
  SmallRun grouped(groups, *members, 0, 2, 3);
  const auto got = grouped.gradients(batches, 0.25);
  EXPECT_EQ(grouped.runner->loss().loss, alone.runner->loss().loss);
  for (const UnitSpec& group : groups.spec().units) {
    const auto unit = static_cast<size_t>(group.id.value);
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      // A group holds two modules; a parameter has the same index in its own module.
      const std::string& name = group.parameters[i].name;
      for (const UnitSpec& single : alone_model->spec().units) {
        const auto member = static_cast<size_t>(single.id.value);
        for (size_t j = 0; j < single.parameters.size(); ++j) {
          if (single.parameters[j].name != name) continue;
          const ElementRange from = alone.layouts[member].parameter(static_cast<int32_t>(j));
          const ElementRange to = grouped.layouts[unit].parameter(static_cast<int32_t>(i));
          EXPECT_TRUE(std::equal(expected[member].begin() + from.begin,
                                 expected[member].begin() + from.end(),
                                 got[unit].begin() + to.begin))
              << name;
        }
      }
    }
  }
}

// A kept graph gives the same bits when backward uses another slot than forward.
TEST(UnitRunner, KeptGraphsGiveTheBitsOfRecompute) {
  const auto recomputed_model = make_small_model(SmallModules(5));
  SmallRun recomputed(*recomputed_model, 0, 2, 3);
  const auto expected = recomputed.gradients(three_batches(), 0.5);
  for (const int32_t kept_graphs : {1, 2, 3}) {
    for (const int slots : {1, 2, 4}) {
      const auto kept_model = make_small_model(SmallModules(5));
      SmallRun kept(*kept_model, kept_graphs, slots, 3);
      EXPECT_EQ(kept.gradients(three_batches(), 0.5), expected) << slots << " slots";
      EXPECT_EQ(kept.runner->loss().loss, recomputed.runner->loss().loss);
    }
  }
}

// Frozen units at the bottom run no backward, and the units above get the same gradients.
TEST(UnitRunner, StopsBackwardAtTheLowestTrainableUnit) {
  const auto full_model = make_small_model(SmallModules(5));
  SmallRun full(*full_model, 0, 2, 3);
  const auto expected = full.gradients(three_batches(), 1.0);

  SmallModules frozen(5);
  frozen.table->weight.requires_grad_(false);
  for (at::Tensor& parameter : frozen.first->parameters()) parameter.requires_grad_(false);
  const auto model = make_small_model(frozen);
  SmallRun run(*model, 0, 2, 3);
  const auto gradients = run.gradients(three_batches(), 1.0);
  EXPECT_EQ(run.runner->backward_order(), (std::vector<UnitId>{UnitId(3), UnitId(2)}));
  EXPECT_EQ(gradients[2], expected[2]);
  EXPECT_EQ(gradients[3], expected[3]);
  EXPECT_TRUE(gradients[0].empty());
}

// More micro-batches than planned are refused.
TEST(UnitRunner, RefusesMoreMicroBatchesThanPlanned) {
  const auto model = make_small_model(SmallModules(5));
  SmallRun run(*model, 0, 2, 2);
  const std::vector<MicroBatch> batches = three_batches();
  EXPECT_THROW(run.runner->begin_step(batches, 1.0), CheckFailure);
}

// Each pass copies a unit once, and backward reuses the unit that forward left in a slot.
TEST(UnitRunner, StagesEachUnitOnceAPassAndReusesTheLast) {
  const auto model = make_small_model(SmallModules(5));
  SmallRun run(*model, 0, 2, 3);
  run.gradients(three_batches(), 1.0);
  // Forward copies 3 units and backward the loss and two units; "second" is still in its slot.
  Bytes units = 0;
  for (size_t unit : {0, 1, 2, 3, 1, 0}) units += run.layouts[unit].flat_bytes();
  EXPECT_EQ(run.copies.counts().to_device, units);
}

}  // namespace
}  // namespace longshore
