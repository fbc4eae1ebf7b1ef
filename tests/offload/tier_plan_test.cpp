// The plan's arithmetic on made-up machines, by hand and against real allocations.
#include "offload/plan/tier_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "config/run_config.h"
#include "device/device_memory.h"
#include "offload/plan/plan_from_config.h"
#include "offload/plan/plan_text.h"
#include "offload/staging/gradient_drain.h"
#include "pinned/pinned_store.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

Bytes bytes_of(const TierPlan& plan, const std::string& name) {
  const std::vector<PlannedBuffer>& buffers = plan.device.buffers;
  const auto found = std::ranges::find(buffers, name, &PlannedBuffer::name);
  return found == buffers.end() ? -1 : found->bytes;
}

// Every device buffer is counted with its bytes, which are computed by hand here.
TEST(TierPlan, CountsEveryDeviceBuffer) {
  // With padding: embedding 257 x 64 -> 16640, a block 2 x 11264 + 256 = 22784, head 16640 + 256.
  const ModelSpec model = fakes::make_small_model(3, false);
  const TierPlan plan = draft_tier_plan(made_up_inputs(model), made_up_machine());
  EXPECT_EQ(plan.device.slots, 2);
  EXPECT_EQ(plan.step.micro_batches, 4);
  EXPECT_EQ(plan.step.positions, 100);
  EXPECT_EQ(bytes_of(plan, "slot.0"), 22784 * 2);
  EXPECT_EQ(bytes_of(plan, "slot.1"), 22784 * 2);
  EXPECT_EQ(bytes_of(plan, "gradient.0"), 22784 * 4);
  EXPECT_EQ(bytes_of(plan, "gradient.1"), 22784 * 4);
  EXPECT_EQ(bytes_of(plan, "drain_staging"), 22784 * 2);
  EXPECT_EQ(bytes_of(plan, "batch"), align_up(3 * 4 * 100 * 8, 256));
  EXPECT_EQ(bytes_of(plan, "input.block.0"), 4 * 12800);  // 100 x 64 x 2 bytes, a multiple of 256
  EXPECT_EQ(bytes_of(plan, "input.head"), 4 * 12800);
  EXPECT_EQ(bytes_of(plan, "input.embedding"), -1);
  EXPECT_EQ(bytes_of(plan, "output_gradient"), 4 * 12800);
  EXPECT_EQ(plan.device.buffers.size(), 2u + 2 + 1 + 1 + 4 + 1);
  EXPECT_EQ(plan.device.workspace, 100 * 6 * kKiB);
  EXPECT_EQ(plan.device.workspace_unit, "head backward");
}

// The plan's buffers add up, and the device carves exactly them.
TEST(TierPlan, SumsUpAndLetsTheDeviceCarveExactlyItsBuffers) {
  for (bool tied : {false, true}) {
    for (DType compute : {DType::kF32, DType::kBF16}) {
      for (bool recompute : {false, true}) {
        const ModelSpec model = fakes::make_small_model(4, tied);
        PlanInputs inputs = made_up_inputs(model);
        inputs.state = {StateFormat::kSplit, compute, compute};
        inputs.recompute = recompute;
        const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
        DeviceMemory memory(plan.device.limit, plan.device.owned);
        for (const PlannedBuffer& buffer : plan.device.buffers) {
          EXPECT_EQ(buffer.bytes % kDeviceBufferAlignment, 0);
          memory.carve(buffer.name, buffer.bytes);
        }
        EXPECT_NO_THROW(memory.check_carved());
        Bytes device = 0;
        for (const PlanLine& line : plan.device.lines) device += line.bytes;
        Bytes host = 0;
        for (const PlanLine& line : plan.host.lines) host += line.bytes;
        EXPECT_EQ(device, plan.device.total);
        EXPECT_EQ(host, plan.host.total);
        EXPECT_EQ(plan.device.total, plan.device.limit) << "auto on the CPU device";
        EXPECT_EQ(memory.workspace_cap(), plan.device.workspace);
        WorkerPool pool(1);
        const PinnedStore store(make_layouts(model, 1, compute), inputs.state, false, &pool);
        EXPECT_EQ(store.host_bytes(), plan.host.arena);
        const HostGradients gradients(make_layouts(model, 1, compute), {.dtype = compute}, false,
                                      pool);
        EXPECT_EQ(gradients.host_bytes(), plan.host.gradients);
      }
    }
  }
}

// Host gradients are all units', or two slots of the largest unit's size in pages.
TEST(TierPlan, CountsTheHostToTheByte) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  WorkerPool pool(1);
  for (const UpdateOverlap overlap :
       {UpdateOverlap::kNone, UpdateOverlap::kForward, UpdateOverlap::kBackward}) {
    inputs.overlap = overlap;
    const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
    // Matrices 8 bytes, norms 12, each unit in pages: 133,120, 183,296 and 136,192 bytes.
    EXPECT_EQ(plan.host.arena, 135168 + 3 * 184320 + 139264);
    const bool ring = overlap == UpdateOverlap::kBackward;
    EXPECT_EQ(plan.host.gradient_ring, ring ? 2 : 0);
    EXPECT_EQ(plan.host.gradients, ring ? 2 * 49152 : 2 * 36864 + 3 * 49152);
    const HostGradients gradients(make_layouts(model, 1, DType::kBF16),
                                  {DType::kBF16, plan.host.gradient_ring}, false, pool);
    EXPECT_EQ(gradients.host_bytes(), plan.host.gradients);
    const std::string text = format_plan(plan, made_up_machine());
    EXPECT_EQ(text.find("ring of 2 x 48.0 KiB, bf16, the largest unit") != std::string::npos, ring)
        << text;
  }
  // With two units a ring would take as much as both.
  ModelSpec few = fakes::make_small_model(1, false);
  few.units.erase(few.units.begin());
  for (size_t u = 0; u < few.units.size(); ++u) few.units[u].id = UnitId(static_cast<int>(u));
  inputs.model = &few;
  inputs.costs = made_up_costs(few.units.size());
  EXPECT_EQ(draft_tier_plan(inputs, made_up_machine()).host.gradient_ring, 0);
}

// The host needs 10 bytes per parameter with clipping; without it 8, and a ring of fixed size.
TEST(TierPlan, TakesTenHostBytesAParameterAndEightInBackward) {
  ModelSpec model;
  for (int u = 0; u < 12; ++u) {
    UnitSpec& unit = model.units.emplace_back();
    unit.id = UnitId(u);
    unit.name = "unit." + std::to_string(u);
    unit.parameters = {fakes::make_parameter(unit.name + ".weight", {2048, 2048})};
    if (u < 11) unit.carry_out = {{2048}};
  }
  constexpr int64_t kUnit = int64_t{2048} * 2048;
  PlanInputs inputs = made_up_inputs(model);
  const auto store_bytes = [&](UpdateOverlap overlap) {
    inputs.overlap = overlap;
    const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
    return plan.host.arena + plan.host.gradients;
  };
  EXPECT_EQ(store_bytes(UpdateOverlap::kForward), 12 * kUnit * 10);
  EXPECT_EQ(store_bytes(UpdateOverlap::kBackward), 12 * kUnit * 8 + 2 * kUnit * 2);
}

// A tied head needs two slots, and its gradient a buffer until the embedding's is reduced.
TEST(TierPlan, GivesATiedHeadTwoSlotsAndItsGradientAPlaceToWait) {
  const ModelSpec model = fakes::make_small_model(2, true);
  PlanInputs inputs = made_up_inputs(model);
  inputs.prefetch = 0;
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plan.device.slots, 2);
  EXPECT_EQ(bytes_of(plan, "waiting_gradient.embedding"), 16640 * 4);
  EXPECT_EQ(bytes_of(plan, "gradient.0"), 22784 * 4);
  const ModelSpec untied = fakes::make_small_model(2, false);
  inputs.model = &untied;
  EXPECT_EQ(draft_tier_plan(inputs, made_up_machine()).device.slots, 1);
}

// Inputs on the host: two slots on the device, and host memory for each input that leaves them.
TEST(TierPlan, CountsOffloadedInputsOnTheHost) {
  const ModelSpec model = fakes::make_small_model(5, false);
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan device = draft_tier_plan(inputs, made_up_machine());
  inputs.offload_inputs = true;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(bytes_of(host, "input_slot.0"), 4 * 12800);
  EXPECT_EQ(bytes_of(host, "input_slot.1"), 4 * 12800);
  EXPECT_EQ(bytes_of(host, "input.block.0"), -1);
  // Seven units have six inputs; those of the last two stay.
  EXPECT_EQ(host.step.offloaded_inputs_total(), 4 * 4 * 12800);
  EXPECT_EQ(host.host.inputs, 4 * 4 * 12800);
  EXPECT_EQ(host.step.offloaded_inputs.at(6), 0);
  EXPECT_EQ(device.device.owned - host.device.owned, 4 * 4 * 12800);
  EXPECT_EQ(host.step.traffic.h2d - device.step.traffic.h2d, 4 * 4 * 12800);
  EXPECT_EQ(host.step.traffic.d2h - device.step.traffic.d2h, 4 * 4 * 12800);
}

// Inputs on drives need two staging slots on the host; those that do not stay there are moved.
TEST(TierPlan, CountsOffloadedInputsOnTheDrives) {
  const ModelSpec model = fakes::make_small_model(5, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.offload_inputs = true;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  inputs.nvme.inputs = true;
  inputs.nvme.directories = {"/one", "/two"};
  const TierPlan drives = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(drives.device.owned, host.device.owned);
  EXPECT_EQ(drives.step.traffic.h2d, host.step.traffic.h2d);
  EXPECT_EQ(drives.host.arena, host.host.arena) << "the state is on the host";
  // 12800 bytes are four blocks on a drive.
  EXPECT_EQ(drives.host.inputs, 2 * 4 * 4 * kBlockBytes);
  EXPECT_EQ(drives.host.total - host.host.total, drives.host.inputs - host.host.inputs);
  EXPECT_EQ(drives.step.traffic.nvme_written, 2 * 4 * 4 * kBlockBytes);
  EXPECT_EQ(drives.step.traffic.nvme_read, drives.step.traffic.nvme_written);
  EXPECT_GE(drives.drives.files.at(0) + drives.drives.files.at(1),
            drives.step.traffic.nvme_written);
  EXPECT_NEAR(static_cast<double>(drives.drives.step_writes.at(0)),
              static_cast<double>(drives.step.traffic.nvme_written) / 2, kBlockBytes);
  EXPECT_NE(format_plan(drives, made_up_machine()).find("nvme: activation checkpoints between"),
            std::string::npos);
  EXPECT_EQ(format_plan(host, made_up_machine()).find("nvme:"), std::string::npos);
  inputs.nvme.state = true;
  const TierPlan both = draft_tier_plan(inputs, made_up_machine());
  EXPECT_GT(both.step.traffic.nvme_written, 2 * drives.step.traffic.nvme_written);
  EXPECT_EQ(both.host.inputs, drives.host.inputs);
}

// Ranks that share a machine gather units in host memory.
TEST(TierPlan, GathersOnTheHostWhereRanksShareAMachine) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  EXPECT_NE(why_not_on_host(inputs).find("whole units"), std::string::npos);
  inputs.topology = make_topology(ShardStrategy::kFullShard, 4, 4);
  inputs.ranks_per_node = 2;
  EXPECT_NE(why_not_on_host(inputs).find("one machine"), std::string::npos);
  inputs.ranks_per_node = 4;
  EXPECT_EQ(why_not_on_host(inputs), "");
  const TierPlan collective = draft_tier_plan(inputs, made_up_machine());
  inputs.gather = GatherMode::kHost;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(host.step.traffic.all_gather, 0);
  EXPECT_GT(collective.step.traffic.all_gather, 0);
  EXPECT_GT(host.step.traffic.h2d, 3 * collective.step.traffic.h2d);
  EXPECT_EQ(host.host.arena, collective.host.arena);
  inputs.state.compute = DType::kF32;
  EXPECT_NE(why_not_on_host(inputs).find("joined"), std::string::npos);
}

// Graphs are kept from the last unit backwards, up to the cap.
TEST(TierPlan, KeepsAsManyGraphsAsFit) {
  const ModelSpec model = fakes::make_small_model(6, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.keep_what_fits = true;
  EXPECT_EQ(draft_tier_plan(inputs, made_up_machine()).step.kept_graphs, 7) << "nothing forbids it";
  inputs.keep_what_fits = false;
  int32_t before = -1;
  for (int32_t kept = 0; kept <= 7; ++kept) {
    inputs.kept_graphs = kept;
    const Bytes needed = draft_tier_plan(inputs, made_up_machine()).device.total;
    PlanInputs capped = inputs;
    capped.keep_what_fits = true;
    capped.device_cap = needed;
    const TierPlan plan = draft_tier_plan(capped, made_up_machine());
    EXPECT_TRUE(plan.fits());
    EXPECT_GE(plan.step.kept_graphs, kept);
    EXPECT_GE(plan.step.kept_graphs, before);
    before = plan.step.kept_graphs;
    capped.device_cap = needed - 1;
    EXPECT_LT(draft_tier_plan(capped, made_up_machine()).step.kept_graphs, std::max(kept, 1));
  }
}

// Frozen units have no gradient buffers.
TEST(TierPlan, KeepsNoGradientForFrozenUnits) {
  ModelSpec model = fakes::make_small_model(2, false);
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) parameter.frozen = unit.name != "head";
  }
  const TierPlan plan = draft_tier_plan(made_up_inputs(model), made_up_machine());
  EXPECT_EQ(bytes_of(plan, "gradient.0"), (16640 + 256) * 4);
  EXPECT_EQ(plan.step.traffic.d2h, (16640 + 256) * 2);
}

// Without recompute the graphs of all micro-batches are held.
TEST(TierPlan, HoldsSavedGraphsOfAllMicroBatchesWithoutRecompute) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.recompute = false;
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plan.device.workspace, 100 * 6 * kKiB + 4 * 4 * 100 * 2 * kKiB);
}

TEST(TierPlan, CountsWhatAStepMoves) {
  const ModelSpec model = fakes::make_small_model(3, true);
  PlanInputs inputs = made_up_inputs(model);
  inputs.state.format = StateFormat::kSplit;
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  const Bytes units = (16640 + 3 * 22784) * 2;
  EXPECT_EQ(plan.step.traffic.h2d, 2 * units + 256 * 2 + 16640 * 2 + 3 * 4 * 100 * 8);
  EXPECT_EQ(plan.step.traffic.d2h, (16640 + 3 * 22784 + 256) * 2);
  EXPECT_EQ(plan.step.traffic.update_dram, (16640 + 3 * 22784 + 256) * 26);
  EXPECT_DOUBLE_EQ(plan.step.traffic.flops_per_token, 8.0 * static_cast<double>(plan.parameters));
  // Norms have fp32 moments in every format: 256 elements in each of three blocks and the head.
  const int64_t matrices = 16640 + 3 * (22784 - 256);
  const auto update_dram = [&](StateFormat format) {
    inputs.state.format = format;
    return draft_tier_plan(inputs, made_up_machine()).step.traffic.update_dram;
  };
  EXPECT_EQ(update_dram(StateFormat::kFp32), (matrices + 4 * 256) * 28);
  EXPECT_EQ(update_dram(StateFormat::kSplitBf16), matrices * 18 + 4 * 256 * 26);
  EXPECT_EQ(update_dram(StateFormat::kSplitInt8),
            matrices * 14 + matrices / 128 * 16 + 4 * 256 * 26);
}

TEST(TierPlan, SharesTheStepOverRanks) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.topology = make_topology(ShardStrategy::kFullShard, 3, 1);
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plan.step.micro_batches, 2) << "7 sequences over 3 ranks, 2 at a time";
  EXPECT_LT(plan.host.arena, draft_tier_plan(made_up_inputs(model), made_up_machine()).host.arena);
}

// The bytes between ranks follow the strategy; a unit is padded for its shard factor.
TEST(TierPlan, CountsWhatEachStrategySends) {
  const ModelSpec model = fakes::make_small_model(2, false);
  struct Case {
    ShardStrategy strategy;
    int32_t hybrid;
    int64_t gathers;  // gathers of each block, in forward and backward
  };
  for (const Case& test :
       {Case{ShardStrategy::kFullShard, 1, 2}, Case{ShardStrategy::kShardGradOp, 1, 1},
        Case{ShardStrategy::kHybridShard, 2, 2}, Case{ShardStrategy::kNoShard, 1, 0}}) {
    PlanInputs inputs = made_up_inputs(model);
    inputs.prefetch = 0;
    inputs.topology = make_topology(test.strategy, 4, test.hybrid);
    const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
    const std::vector<FlatLayout> layouts =
        make_layouts(model, plan.topology.shard_ranks, inputs.state.compute);
    const int64_t embedding = layouts[0].trainable_elements(),
                  head = layouts[3].trainable_elements();
    const int64_t blocks = layouts[1].trainable_elements() + layouts[2].trainable_elements();
    const int64_t all = embedding + blocks + head;
    const int64_t ends = test.strategy == ShardStrategy::kShardGradOp ? embedding : 2 * embedding;
    // With one slot backward gathers all but the head again, which runs both ways at once.
    const Bytes gathered = test.gathers == 0 ? 0 : (ends + test.gathers * blocks + head) * 2;
    EXPECT_EQ(plan.step.traffic.all_gather, gathered) << name_of(test.strategy);
    EXPECT_EQ(plan.step.traffic.reduce_scatter, plan.topology.shard_ranks > 1 ? all * 4 : 0);
    EXPECT_EQ(plan.step.traffic.all_reduce,
              plan.topology.replicas() > 1 ? all * 4 / plan.topology.shard_ranks : 0);
    EXPECT_EQ(plan.device.slots, test.strategy == ShardStrategy::kShardGradOp ? 4 : 1);
  }
}

TEST(TierPlan, RefusesADeviceCapWithTheArithmeticAndTheKeys) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.recompute = false;
  inputs.device_cap = 1200 * kKiB;
  try {
    make_tier_plan(inputs, made_up_machine());
    FAIL() << "does not fit";
  } catch (const DoesNotFitError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kDoesNotFit);
    for (const char* part :
         {"device memory: the plan needs ", "offload.device_memory is 1.2 MiB", "too little",
          "saved graphs: ", "train.micro_batch = 1 (now 2) saves ", "data.max_tokens = ",
          "train.sequences_per_step = ", "fsdp.prefetch = 0 (now 1) saves 133.5 KiB",
          "fsdp.recompute = \"unit\" (now \"none\") saves ", "enough alone",
          "offload.device_memory of at least "}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
    EXPECT_EQ(text.find("state_format"), std::string::npos) << "does not help the device";
  }
}

TEST(TierPlan, SaysWhatAllKeysTogetherNeedWhenNoneIsEnough) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device_cap = 600 * kKiB;
  const std::string some = explain_misfit(inputs, made_up_machine());
  EXPECT_EQ(some.find("all of these together"), std::string::npos) << some;
  inputs.device_cap = 290 * kKiB;
  const std::string all = explain_misfit(inputs, made_up_machine());
  EXPECT_NE(all.find("all of these together need "), std::string::npos) << all;
  EXPECT_NE(all.find(", enough"), std::string::npos) << all;
  inputs.device_cap = 1000;
  EXPECT_NE(explain_misfit(inputs, made_up_machine()).find(", still too much"), std::string::npos);
}

TEST(TierPlan, RefusesAHostThatIsTooSmallAndSaysWhatSplitWouldSave) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.state.format = StateFormat::kFp32;
  const std::string text = explain_misfit(inputs, made_up_machine(64 * kMiB));
  EXPECT_NE(text.find("host memory: the plan needs "), std::string::npos) << text;
  EXPECT_NE(text.find("the machine has 64.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("offload.state_format = \"split\" (now \"fp32\") saves "), std::string::npos);
  EXPECT_NE(text.find("optimizer.overlap = \"backward\" with train.max_grad_norm = 0 (now "
                      "\"forward\") saves 120.0 KiB"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("device memory:"), std::string::npos) << "the device is what the plan needs";
  inputs.host_cap = 1000;
  EXPECT_NE(explain_misfit(inputs, made_up_machine()).find("offload.host_memory of at least "),
            std::string::npos);
}

// The plan shows the gain of a third slot if, and only if, units are gathered.
TEST(PlanText, SaysWhatAThirdSlotWouldGive) {
  const ModelSpec model = fakes::make_small_model(3, false);
  PlanInputs inputs = made_up_inputs(model);
  const auto says = [&] {
    const std::string text =
        format_plan(draft_tier_plan(inputs, made_up_machine()), made_up_machine());
    return text.find("fsdp.prefetch = 2 overlaps") != std::string::npos;
  };
  EXPECT_FALSE(says()) << "one rank gathers nothing";
  inputs.topology = make_topology(ShardStrategy::kFullShard, 2, 2);
  inputs.ranks_per_node = 2;
  const Bytes before = draft_tier_plan(inputs, made_up_machine()).device.total;
  EXPECT_TRUE(says());
  inputs.prefetch = 2;
  EXPECT_FALSE(says());
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plan.device.total - before, bytes_of(plan, "slot.0") + bytes_of(plan, "gradient.0"));
}

// A plan fits exactly at the cap, and not one byte below.
TEST(TierPlan, FitsExactlyAtTheCapAndNotAByteBelow) {
  const ModelSpec model = fakes::make_small_model(3, true);
  PlanInputs inputs = made_up_inputs(model);
  const Bytes needed = draft_tier_plan(inputs, made_up_machine()).device.total;
  inputs.device_cap = needed;
  EXPECT_NO_THROW(make_tier_plan(inputs, made_up_machine()));
  EXPECT_EQ(explain_misfit(inputs, made_up_machine()), "");
  inputs.device_cap = needed - 1;
  EXPECT_THROW(make_tier_plan(inputs, made_up_machine()), DoesNotFitError);
}

TEST(TierPlan, RefusesSizesBeyondCounting) {
  const ModelSpec model = fakes::make_small_model(1, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.max_tokens = int64_t{1} << 62;
  EXPECT_THROW(make_tier_plan(inputs, made_up_machine()), DoesNotFitError);
}

TEST(TierPlan, PlansForAGpuWithItsOwnMemory) {
  const ModelSpec model = fakes::make_small_model(2, false);
  PlanInputs inputs = made_up_inputs(model);
  inputs.device = DeviceKind::kCuda;
  Machine machine = made_up_machine();
  machine.gpus = {{.name = "Test GPU", .memory_bytes = 24 * kGiB}};
  const TierPlan plan = make_tier_plan(inputs, machine);
  EXPECT_EQ(plan.device.limit, 23 * kGiB);  // one is left to the CUDA context
}

// The text, table and JSON of a plan have the same numbers.
TEST(PlanText, SaysTheSameNumbersAsTableAndAsJson) {
  const ModelSpec model = fakes::make_small_model(3, true);
  const Machine machine = made_up_machine();
  const TierPlan plan = draft_tier_plan(made_up_inputs(model), machine);
  const nlohmann::json json = nlohmann::json(plan_to_json(plan, machine));
  const std::string text = format_plan(plan, machine);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["device"]["owned_bytes"], plan.device.owned);
  EXPECT_EQ(json["device"]["total_bytes"], plan.device.total);
  EXPECT_EQ(json["host"]["arena_bytes"], plan.host.arena);
  EXPECT_EQ(json["host"]["gradient_bytes"], plan.host.gradients);
  EXPECT_EQ(json["host"]["gradient_ring"], plan.host.gradient_ring);
  EXPECT_EQ(json["device"]["buffers"].size(), plan.device.buffers.size());
  Bytes sum = 0;
  for (const char* tier : {"device", "host"}) {
    for (const auto& line : json[tier]["lines"]) {
      const std::string shown = format_bytes(line["bytes"]);
      EXPECT_NE(text.find(line["name"]), std::string::npos) << line;
      EXPECT_NE(text.find(shown), std::string::npos) << line;
      sum += line["bytes"].get<Bytes>();
    }
  }
  EXPECT_EQ(sum, plan.device.total + plan.host.total);
}

// Goal: wear is forecast from the drives' rating and known values only.
TEST(PlanText, ForecastsHowLongDrivesLast) {
  const ModelSpec model = fakes::make_small_model(3, true);
  PlanInputs inputs = made_up_inputs(model);
  inputs.nvme.state = true;
  inputs.nvme.directories = {"/one", "/two"};
  inputs.ranks_per_node = 2;
  const Machine machine = made_up_machine();
  const auto plan_of = [&] { return draft_tier_plan(inputs, machine); };
  const auto life_of = [&](const TierPlan& plan) {
    return nlohmann::json(plan_to_json(plan, machine))["nvme"]["life"];
  };
  const TierPlan bare = plan_of();
  const Bytes both = bare.drives.step_writes[0] + bare.drives.step_writes[1];
  EXPECT_NEAR(static_cast<double>(both), 2.0 * static_cast<double>(bare.step.traffic.nvme_written),
              2.0)
      << "both ranks of the node write";
  EXPECT_TRUE(life_of(bare)[0]["run_written_bytes"].is_null());
  EXPECT_TRUE(life_of(bare)[0]["days_to_rating"].is_null());
  EXPECT_NE(format_plan(bare, machine).find("offload.nvme_tbw"), std::string::npos);

  inputs.steps = 500;
  inputs.nvme.rated_writes = 1000 * bare.drives.step_writes[0];
  inputs.nvme.seconds_per_step = 86.4;
  inputs.nvme.wear = {DriveWear{12'300'000'000'000, 7}, std::nullopt};
  const TierPlan known = plan_of();
  EXPECT_EQ(life_of(known)[0]["run_share_of_rating"], 0.5);
  EXPECT_NEAR(life_of(known)[0]["days_to_rating"].get<double>(), 1.0, 1e-9);
  EXPECT_EQ(life_of(known)[0]["percent_used"], 7);
  EXPECT_TRUE(life_of(known)[1]["percent_used"].is_null());
  const std::string text = format_plan(known, machine);
  EXPECT_NE(text.find("50 % of the rated"), std::string::npos) << text;
  EXPECT_NE(text.find("lasts 1 days"), std::string::npos) << text;
  EXPECT_NE(text.find("12.3 TB were written and 7 % of its life is used"), std::string::npos)
      << text;
}

// Goal: one version takes half the space, and the plan states its cost.
TEST(PlanText, SaysWhatOneVersionCosts) {
  const ModelSpec model = fakes::make_small_model(3, true);
  PlanInputs inputs = made_up_inputs(model);
  inputs.state = {StateFormat::kSplit, DType::kBF16, DType::kBF16};
  inputs.nvme.state = true;
  inputs.nvme.directories = {"/one"};
  inputs.nvme.checkpoint_steps = 250;
  const Machine machine = made_up_machine();
  const TierPlan two = draft_tier_plan(inputs, machine);
  const std::string before = format_plan(two, machine);
  EXPECT_NE(before.find("two versions of the state; every step is a durable commit\n"),
            std::string::npos)
      << before;
  EXPECT_EQ(before.find("each checkpoint writes"), std::string::npos);

  inputs.nvme.versions = 1;
  const TierPlan one = draft_tier_plan(inputs, machine);
  constexpr Bytes kTables = 2 * kBlockBytes;
  EXPECT_EQ(2 * (one.drives.files[0] - kManifestAreaBytes),
            two.drives.files[0] - kManifestAreaBytes - kTables);
  EXPECT_EQ(one.step.traffic.nvme_written, two.step.traffic.nvme_written);
  const std::string text = format_plan(one, machine);
  EXPECT_NE(text.find("one version of the state, half the space; no step is durable: a kill costs "
                      "up to 250 steps (checkpoint.every_steps)\n"),
            std::string::npos)
      << text;
  // A checkpoint has fp32 masters and moments of the trainable parameters.
  EXPECT_EQ(one.checkpoint_bytes, 12 * model.trainable_elements());
  EXPECT_NE(text.find("each checkpoint writes " + format_bytes(one.checkpoint_bytes)),
            std::string::npos)
      << text;
  const auto json = nlohmann::json(plan_to_json(one, machine))["nvme"];
  EXPECT_EQ(json["versions"], 1);
  EXPECT_EQ(json["durable"], "checkpoint");
  EXPECT_EQ(json["checkpoint_every_steps"], 250);
  EXPECT_EQ(json["checkpoint_bytes"], one.checkpoint_bytes);

  inputs.nvme.checkpoint_steps = 0;
  EXPECT_NE(format_plan(draft_tier_plan(inputs, machine), machine)
                .find("a kill costs every step since the start"),
            std::string::npos);
}

TEST(PlanInputs, ComeFromTheRunFile) {
  RunConfig config;
  config.train.micro_batch = 3;
  config.fsdp.recompute = FsdpSection::Recompute::kNone;
  config.offload.state_format = StateFormat::kFp32;
  config.offload.device_memory = 5 * kMiB;
  config.offload.threads = 9;
  config.precision.compute = DType::kF32;
  config.optimizer.betas = {0.8, 0.99};
  config.optimizer.decay = DecayRule::kAll;
  const ModelSpec model = fakes::make_small_model(1, false);
  const PlanInputs inputs = plan_inputs(config, model, made_up_machine());
  EXPECT_EQ(inputs.micro_batch, 3);
  EXPECT_EQ(inputs.max_tokens, config.data.max_tokens);
  EXPECT_FALSE(inputs.recompute);
  config.fsdp.recompute = FsdpSection::Recompute::kAuto;
  EXPECT_TRUE(plan_inputs(config, model, made_up_machine()).keep_what_fits);
  config.fsdp.recompute = FsdpSection::Recompute::kExceptAttention;
  EXPECT_EQ(plan_inputs(config, model, made_up_machine()).keep_results, KeptResults::kAttention);
  config.fsdp.recompute = FsdpSection::Recompute::kExceptMlp;
  EXPECT_EQ(plan_inputs(config, model, made_up_machine()).keep_results, KeptResults::kMlp);
  EXPECT_TRUE(plan_inputs(config, model, made_up_machine()).recompute);
  EXPECT_EQ(inputs.state.format, StateFormat::kFp32);
  EXPECT_EQ(inputs.state.drain, DType::kF32) << "auto follows compute";
  EXPECT_EQ(inputs.device_cap, 5 * kMiB);
  EXPECT_FALSE(inputs.host_cap.has_value());
  EXPECT_EQ(inputs.optimizer_threads, 9);
  EXPECT_EQ(inputs.compute_threads, 4) << "the physical cores";
  EXPECT_EQ(adamw_options(config).beta2, 0.99);
  EXPECT_EQ(adamw_options(config).decay, DecayRule::kAll);
  EXPECT_EQ(inputs.device, DeviceKind::kCpu);
  config.device.kind = DeviceSection::Kind::kCuda;
  EXPECT_EQ(plan_inputs(config, model, made_up_machine()).device, DeviceKind::kCuda);
}

// Goal: on a GPU the update has all hardware threads but those that issue to it, and no fewer than
// half; two hardware threads of a core count as two.
TEST(PlanInputs, LeavesThreadsFreeForAGpusLanes) {
  RunConfig config;
  const ModelSpec model = fakes::make_small_model(1, false);
  Machine machine = made_up_machine();
  const auto threads = [&](int cores, int logical) {
    machine.physical_cores = cores;
    machine.logical_cores = logical;
    return plan_inputs(config, model, machine).optimizer_threads;
  };
  EXPECT_EQ(threads(16, 16), 16) << "the CPU device";
  EXPECT_EQ(threads(8, 16), 8) << "the CPU device, where compute wants the cores";
  config.device.kind = DeviceSection::Kind::kCuda;
  EXPECT_EQ(threads(16, 16), 13);
  EXPECT_EQ(threads(8, 16), 13) << "a core's second thread is one";
  EXPECT_EQ(threads(4, 8), 5);
  EXPECT_EQ(threads(6, 6), 3);
  EXPECT_EQ(threads(4, 4), 2);
  EXPECT_EQ(threads(1, 2), 1);
  EXPECT_EQ(threads(1, 1), 1);
  config.offload.threads = 16;
  EXPECT_EQ(threads(16, 32), 16) << "as the run file has it";
}

}  // namespace
}  // namespace longshore
