// Recipes, planned for the machines of their names. Goal: each fits, and its step can be forecast.
// Measuring a block takes a minute per model, so units are assumed to need their gradients and a
// GPU's scratch. scripts/dev/recipes --check measures the rest and compares the values in the
// recipes' heads.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "offload/engine/probe/measured_workspace.h"
#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/common_recipes.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_setup.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Applies the cut, with the assumed costs of its units.
void take_units(RunSetup& setup, UnitsChoice::Kind kind) {
  UnitsChoice units;
  units.kind = kind;
  setup.source->choose(setup.source->in_units(units));
  setup.inputs.model = &setup.source->spec();
  ProbeOptions options;
  options.device.compute = setup.inputs.state.compute;
  options.elsewhere = true;
  options.run = {.positions = setup.inputs.micro_batch * setup.inputs.max_tokens,
                 .longest_document = setup.inputs.max_tokens};
  options.memory = 0;
  const MeasuredWorkspace nothing(setup.source->model(), options);
  ASSERT_EQ(nothing.units_run(), 0);
  setup.inputs.costs = nothing.costs();
}

struct Planned {
  RunSetup setup;
  TierPlan plan;
};

// Plans the coarsest cut that fits, as a run does.
Planned planned(const std::string& recipe, const std::string& model,
                const DescribedMachine& machine, const std::string& run) {
  const auto ranks = static_cast<int32_t>(std::max<size_t>(1, machine.machine.gpus.size()));
  Planned made = {
      .setup = prepare_run({.files = {recipe},
                            .overrides = {{"model.path", model},
                                          {"model.init", "random"},
                                          {"run.dir", run},
                                          {"data.train", "[\"rows.jsonl\"]"}}},
                           {.ranks = ranks, .per_node = ranks, .machine = machine.machine}),
      .plan = {}};
  for (const UnitsChoice::Kind kind :
       {UnitsChoice::Kind::kBlock, UnitsChoice::Kind::kHalf, UnitsChoice::Kind::kPiece}) {
    take_units(made.setup, kind);
    made.plan = draft_tier_plan(made.setup.inputs, made.setup.machine);
    if (made.plan.fits()) break;
  }
  return made;
}

// Each recipe fits its machine and has a forecast.
TEST(Recipes, FitTheMachinesOfTheirNames) {
  const TemporaryDirectory directory;
  const fs::path config = test_data() + "/../config";
  int recipes = 0;
  for (const auto& entry : fs::directory_iterator(config / "recipes")) {
    if (entry.path().extension() != ".toml") continue;
    const std::string name = entry.path().stem();
    SCOPED_TRACE(name);
    const size_t border = name.find('_');
    const DescribedMachine machine =
        read_machine(config / "machines" / (name.substr(border + 1) + ".toml"));
    Planned made = planned(entry.path(), config / "recipes/models" / name.substr(0, border),
                           machine, directory.file("run"));
    EXPECT_TRUE(made.plan.fits());
    EXPECT_LE(made.plan.device.owned, made.plan.device.limit);
    EXPECT_LE(made.plan.host.total, made.plan.host.limit);
    PlanForecast forecast(&made.setup, machine);
    EXPECT_TRUE(forecast.step(made.setup.inputs, made.plan).known());
    ++recipes;
  }
  EXPECT_EQ(recipes, std::ssize(common_recipes())) << "the program has all of them";
}

}  // namespace
}  // namespace longshore
