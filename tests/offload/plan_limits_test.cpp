// The limits of a plan (the machine, its control group, its drives) and their error texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "offload/plan/plan_text.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

// Goal: a machine without a GPU can plan for one with a GPU.
TEST(PlanLimits, PlansForAGpuThatIsNotHere) {
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device = DeviceKind::kCuda;
  const TierPlan plan = make_tier_plan(inputs, made_up_machine());
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.device.limit, plan.device.total);
  inputs.device_cap = plan.device.total - 1;
  EXPECT_FALSE(draft_tier_plan(inputs, made_up_machine()).fits());
}

// Returns the bytes of a line of the host's part of the plan; 0 if no line has that name.
Bytes host_line(const TierPlan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.host.lines, name, &PlanLine::name);
  return found == plan.host.lines.end() ? 0 : found->bytes;
}

// Goal: a GPU's bytes are none of the host's, and CUDA's context and libraries come on top of what
// a process takes there without them; both are estimates.
TEST(PlanLimits, CountsWhatAGpusProcessTakesOfTheHost) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan cpu = draft_tier_plan(inputs, made_up_machine());
  inputs.device = DeviceKind::kCuda;
  const TierPlan gpu = draft_tier_plan(inputs, made_up_machine());
  EXPECT_GT(host_line(cpu, "cpu device"), 0);
  EXPECT_EQ(host_line(gpu, "cpu device"), 0);
  EXPECT_EQ(host_line(cpu, "process"), 512 * kMiB);
  EXPECT_EQ(host_line(gpu, "process"), 1536 * kMiB);
}

// Goal: ranks' GPUs run one collective at a time, in the order of the schedule; over the host's
// network gathers and sums go side by side.
TEST(PlanLimits, OrdersCollectivesOnGpus) {
  const ModelSpec model = fakes::make_small_model(4, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.topology = make_topology(ShardStrategy::kFullShard, 2, 2);
  const auto waits = [&](DeviceKind device) {
    inputs.device = device;
    int waits = 0;
    const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
    const std::vector<Op>& ops = plan.step.schedules.train.ops;
    for (const Op& op : ops) {
      if (op.kind != OpKind::kGather) continue;
      for (const int32_t before : op.after) {
        if (ops[static_cast<size_t>(before)].kind == OpKind::kReduce) ++waits;
      }
    }
    return waits;
  };
  EXPECT_EQ(waits(DeviceKind::kCpu), 0);
  EXPECT_GT(waits(DeviceKind::kCuda), 0);
}

// Goal: the plan names, as an estimate, the memory of a GPU outside the cap: a communicator for
// each group of ranks that exchanges. The CPU device has none.
TEST(PlanLimits, NamesWhatIsOutsideAGpusCap) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  const auto outside = [&](const TierPlan& plan) {
    return plan_to_json(plan, made_up_machine())["device"]["outside_cap"];
  };
  const TierPlan cpu = draft_tier_plan(inputs, made_up_machine());
  EXPECT_TRUE(outside(cpu).empty());
  EXPECT_EQ(format_plan(cpu, made_up_machine()).find("outside the limit"), std::string::npos);
  inputs.device = DeviceKind::kCuda;
  EXPECT_EQ(outside(draft_tier_plan(inputs, made_up_machine())).size(), 1u);
  inputs.topology = make_topology(ShardStrategy::kHybridShard, 4, 2);
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  ASSERT_EQ(outside(plan).size(), 2u);
  EXPECT_EQ(outside(plan)[1]["exact"], false);
  EXPECT_EQ(outside(plan)[1]["bytes"], 320 * kMiB);
  EXPECT_NE(format_plan(plan, made_up_machine())
                .find("outside the limit, estimates: CUDA's context and loaded kernels about 512.0 "
                      "MiB, NCCL's buffers about 320.0 MiB\n"),
            std::string::npos);
}

// Goal: "auto" is the free memory of the rank's own GPU, less the memory of a CUDA context.
TEST(PlanLimits, TakesWhatIsFreeOfTheGpu) {
  EXPECT_EQ(gpu_room(24 * kGiB, 24 * kGiB), 23 * kGiB) << "nobody else is there";
  EXPECT_EQ(gpu_room(24 * kGiB, 20 * kGiB), 20 * kGiB - 512 * kMiB) << "a desktop has the rest";
  EXPECT_EQ(gpu_room(512 * kMiB, 256 * kMiB), 0);
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device = DeviceKind::kCuda;
  Machine machine = made_up_machine();
  machine.gpus = {{.name = "First", .memory_bytes = 24 * kGiB},
                  {.name = "The rank's", .memory_bytes = 8 * kGiB}};
  machine.gpu_room = 6 * kGiB;
  EXPECT_EQ(draft_tier_plan(inputs, machine).device.limit, 6 * kGiB);
  machine.gpu_room.reset();
  EXPECT_EQ(draft_tier_plan(inputs, machine).device.limit, 23 * kGiB);
}

// Goal: a device cap beyond the GPU does not fit.
TEST(PlanLimits, RefusesADeviceCapBeyondTheGpu) {
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device = DeviceKind::kCuda;
  Machine machine = made_up_machine();
  machine.gpus = {{.name = "Test GPU", .memory_bytes = 24 * kGiB}};
  inputs.device_cap = 24 * kGiB;
  EXPECT_TRUE(draft_tier_plan(inputs, machine).fits());
  inputs.device_cap = 25 * kGiB;
  EXPECT_FALSE(draft_tier_plan(inputs, machine).fits());
  const std::string text = explain_misfit(inputs, machine);
  EXPECT_NE(text.find("offload.device_memory is 25.0 GiB, the GPU has 24.0 GiB"), std::string::npos)
      << text;
}

// Goal: a host cap beyond the machine or its control group does not fit.
TEST(PlanLimits, RefusesAHostCapBeyondTheMachine) {
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.host_cap = 16 * kGiB;
  EXPECT_TRUE(draft_tier_plan(inputs, made_up_machine()).fits());
  inputs.host_cap = 17 * kGiB;
  std::string text = explain_misfit(inputs, made_up_machine());
  EXPECT_FALSE(draft_tier_plan(inputs, made_up_machine()).fits());
  EXPECT_NE(text.find("offload.host_memory is 17.0 GiB, the machine has 16.0 GiB, 1.0 GiB too"),
            std::string::npos)
      << text;
  Machine grouped = made_up_machine();
  grouped.cgroup_limit = 8 * kGiB;
  grouped.cgroup_available = 6 * kGiB;
  inputs.host_cap = 12 * kGiB;
  text = explain_misfit(inputs, grouped);
  EXPECT_NE(text.find("offload.host_memory is 12.0 GiB, the control group may take 8.0 GiB of the "
                      "machine's 16.0 GiB, 4.0 GiB too little"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\"auto\": the free memory, now 6.0 GiB, enough"), std::string::npos) << text;
  // Ranks share a machine.
  inputs.topology = make_topology(ShardStrategy::kFullShard, 2, 2);
  inputs.ranks_per_node = 2;
  inputs.host_cap = 9 * kGiB;
  EXPECT_FALSE(draft_tier_plan(inputs, made_up_machine()).fits());
  inputs.host_cap = 8 * kGiB;
  EXPECT_TRUE(draft_tier_plan(inputs, made_up_machine()).fits());
}

// Goal: drives without room for the files are refused before data is prepared.
TEST(PlanLimits, RefusesDrivesThatAreTooFull) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.nvme.state = true;
  inputs.nvme.directories = {"/a", "/b"};
  const std::vector<Bytes> files = draft_tier_plan(inputs, made_up_machine()).drives.files;
  const Bytes a = files.at(0), b = files.at(1);
  const auto fits = [&](DriveRoom first, DriveRoom second) {
    inputs.nvme.rooms = {first, second};
    return draft_tier_plan(inputs, made_up_machine()).fits();
  };
  EXPECT_TRUE(fits({.file_system = 1, .free = a}, {.file_system = 2, .free = b}));
  EXPECT_TRUE(fits({.file_system = 1, .free = 0, .held = a}, {.file_system = 2, .free = b}));
  EXPECT_TRUE(fits({.file_system = 1, .free = a + b}, {.file_system = 1, .free = a + b}));
  EXPECT_FALSE(fits({.file_system = 1, .free = a + b - 1}, {.file_system = 1, .free = a + b - 1}));
  EXPECT_FALSE(fits({.file_system = 1, .free = a}, {.file_system = 2, .free = b - 1}));
  const std::string text = explain_misfit(inputs, made_up_machine());
  for (const char* part : {"drives: the files need 1 B more", "/b: ", "what would help:",
                           "offload.nvme_versions = 1 (now 2) saves 1 B, enough alone"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// If host memory is short, the error proposes drives.
TEST(PlanLimits, OffersDrivesWhereTheHostIsShort) {
  const ModelSpec model = fakes::make_small_model(64, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.host_cap = 1000;
  EXPECT_NE(explain_misfit(inputs, made_up_machine())
                .find("offload.optimizer = \"nvme\" with offload.nvme = "),
            std::string::npos);
}

// Goal: the plan shows what smaller units would save and cost, and a refusal proposes them.
TEST(PlanLimits, SaysWhatOtherUnitsTake) {
  const ModelSpec model = fakes::make_small_model(3, false);
  const auto finer = std::make_shared<ModelSpec>();
  for (const UnitSpec& unit : model.units) {
    const size_t parts = unit.name.starts_with("block") ? 2 : 1;
    for (size_t part = 0; part < parts; ++part) {
      UnitSpec made = unit;
      made.id = UnitId(static_cast<int32_t>(finer->units.size()));
      if (parts == 2) made.parameters = {unit.parameters[part + 1]};
      finer->units.push_back(made);
    }
  }
  PlanInputs inputs = made_up_inputs(model);
  inputs.offload_inputs = true;
  inputs.other_units = {{"\"half\"", finer, made_up_inputs(*finer).costs}};
  const Machine machine = made_up_machine();
  TierPlan plan = draft_tier_plan(inputs, machine);
  EXPECT_EQ(format_plan(plan, machine).find("fsdp.units"), std::string::npos) << "nobody compared";
  compare_units(plan, inputs, machine);
  ASSERT_EQ(plan.other_units.size(), 1u);
  PlanInputs changed = inputs;
  changed.model = finer.get();
  changed.costs = inputs.other_units[0].costs;
  const TierPlan there = draft_tier_plan(changed, machine);
  const UnitsDifference& other = plan.other_units[0];
  EXPECT_EQ(other.device, there.device.total - plan.device.total);
  EXPECT_LT(other.device, 0);
  EXPECT_EQ(other.host, there.host.total - plan.host.total);
  EXPECT_GT(other.moved, 0) << "twice the activation checkpoints";
  EXPECT_NE(format_plan(plan, machine)
                .find("fsdp.units = \"half\": device " + format_bytes(-other.device) + " less"),
            std::string::npos)
      << format_plan(plan, machine);
  inputs.device_cap = there.device.total;
  EXPECT_NE(explain_misfit(inputs, machine)
                .find("fsdp.units = \"half\" (now \"block\") saves " + format_bytes(-other.device) +
                      ", enough alone"),
            std::string::npos)
      << explain_misfit(inputs, machine);
}

// The plan's text begins with whether it fits, and by how much.
TEST(PlanLimits, BeginsWithWhetherItFitsAndByHowMuch) {
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.steps = 7;
  const Machine machine = made_up_machine();
  const std::string text = format_plan(draft_tier_plan(inputs, machine), machine);
  EXPECT_TRUE(text.starts_with("fits: device ")) << text;
  EXPECT_NE(text.find(", without a limit; host "), std::string::npos) << text;
  EXPECT_EQ(text.find("0 B left"), std::string::npos) << text;
  EXPECT_NE(text.find("7 steps; a checkpoint is about "), std::string::npos) << text;
  inputs.device_cap = kGiB;
  EXPECT_NE(format_plan(draft_tier_plan(inputs, machine), machine).find(" left; host "),
            std::string::npos);
  inputs.device_cap = 1000;
  EXPECT_TRUE(format_plan(draft_tier_plan(inputs, machine), machine).starts_with("does not fit: "));
}

// A model so small that no activation checkpoint leaves the device has empty files on its drives.
TEST(PlanLimits, HasEmptyFilesWhereNoInputIsOffloaded) {
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.offload_inputs = true;
  inputs.nvme.inputs = true;
  inputs.nvme.directories = {"/one", "/two"};
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plan.step.offloaded_inputs_total(), 0);
  EXPECT_EQ(plan.drives.files, (std::vector<Bytes>{0, 0}));
  EXPECT_EQ(plan.drives.step_writes, (std::vector<Bytes>{0, 0}));
}

}  // namespace
}  // namespace longshore
