// Recipes, planned for the machines that their heads name. Goal: each fits, and its head has the
// plan's figures. To measure a block's memory takes a minute a model, so no unit is run here: a
// unit is taken to need its gradients and a GPU's scratch, and of the head's figure for the device
// only the engine's own part is compared. scripts/dev/recipes --check measures the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "base/file.h"
#include "offload/engine/probe/measured_workspace.h"
#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/plan_forecast.h"
#include "trainer/setup/run_setup.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

const double kGiBs = static_cast<double>(kGiB);
// Heads have one digit behind the point of GiB, and two digits of seconds.
constexpr double kHalfDigit = 0.05 + 1e-9;
constexpr double kTwoDigits = 0.05 + 1e-9;

// The numbers of the head's line of that name, in order.
std::vector<double> numbers_of(const std::string& head, const std::string& line) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(head, found, std::regex("\n#   " + line + " (.*)\n"))) << line;
  const std::string text = found[1];
  static const std::regex number("[0-9]+([.][0-9]+)?");
  std::vector<double> numbers;
  for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at) {
    numbers.push_back(std::stod(at->str()));
  }
  return numbers;
}

// Takes the cut, with what its units are taken to need where none is run.
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

// The coarsest cut that fits, as a run takes it.
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

void compare_memory(const std::string& head, const TierPlan& plan, int32_t ranks) {
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes) / kGiBs; };
  const std::vector<double> device = numbers_of(head, "device");
  EXPECT_GE(device.at(0), gib(plan.device.owned) - kHalfDigit);
  EXPECT_LE(device.at(0), device.at(1));
  EXPECT_NEAR(device.at(1), gib(plan.device.limit), kHalfDigit);
  const std::vector<double> host = numbers_of(head, "host");
  EXPECT_NEAR(host.at(0), gib(plan.host.total * ranks), kHalfDigit);
  EXPECT_NEAR(host.at(1), gib(plan.host.limit * ranks), kHalfDigit);
  EXPECT_EQ(host.size() > 2, plan.drives.tier.state) << "says what lies on drives";
  EXPECT_NEAR(numbers_of(head, "each checkpoint").at(0), gib(plan.checkpoint_bytes), kHalfDigit);
}

void compare_time(const std::string& head, Planned& made, const DescribedMachine& machine) {
  PlanForecast forecast(&made.setup, machine);
  const StepForecast step = forecast.step(made.setup.inputs, made.plan);
  ASSERT_TRUE(step.known());
  // "11 s of 16 x 1024 tokens, 1400 tokens/s"
  const std::vector<double> said = numbers_of(head, "step");
  EXPECT_NEAR(said.at(0), step.seconds, kTwoDigits * step.seconds);
  EXPECT_EQ(said.at(1), static_cast<double>(made.setup.inputs.sequences_per_step));
  EXPECT_EQ(said.at(2), static_cast<double>(made.setup.inputs.max_tokens));
  EXPECT_NEAR(said.at(3), step.tokens_per_second, kTwoDigits * step.tokens_per_second);
}

TEST(Recipes, FitTheirMachinesAsTheirHeadsSay) {
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
    const std::string head = read_whole_file(entry.path(), kMiB);
    compare_memory(head, made.plan, made.setup.inputs.ranks_per_node);
    compare_time(head, made, machine);
    ++recipes;
  }
  EXPECT_GE(recipes, 10);
}

}  // namespace
}  // namespace longshore
