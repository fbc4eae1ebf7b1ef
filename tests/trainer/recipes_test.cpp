// Recipes, planned for the machines of their names. Goal: each fits, and its step can be forecast.
// Measuring a block takes a minute per model, so units are assumed to need their gradients and a
// GPU's scratch. scripts/dev/recipes --check measures the rest and compares the values in the
// recipes' heads.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_setup.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Plans the coarsest cut that fits, as a run does.
MeasuredRun measured(const std::string& recipe, const std::string& model,
                     const DescribedMachine& machine, const TemporaryDirectory& directory) {
  return MeasuredRun(OpenedRun(read_run({.files = {recipe},
                                         .overrides = {{"model.path", model},
                                                       {"model.init", "random"},
                                                       {"run.dir", directory.file("run")},
                                                       {"data.cache", directory.file("cache")},
                                                       {"data.train", "[\"rows.jsonl\"]"}}},
                                        {.machine = machine.machine, .probe_memory = 0})));
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
    const DescribedMachine machine = read_machine(name.substr(border + 1));
    const MeasuredRun run = measured(
        entry.path(), config / "recipes/models" / name.substr(0, border), machine, directory);
    const TierPlan plan = draft_tier_plan(run.inputs, run.machine);
    EXPECT_TRUE(plan.fits());
    EXPECT_LE(plan.device.owned, plan.device.limit);
    EXPECT_LE(plan.host.total, plan.host.limit);
    PlanForecast forecast(&run, machine);
    EXPECT_TRUE(forecast.step(run.inputs, plan).known());
    ++recipes;
  }
  EXPECT_EQ(recipes, std::ssize(common_recipes())) << "the program has all of them";
}

}  // namespace
}  // namespace longshore
