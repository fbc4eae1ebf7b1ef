// The forecast of a step from rates that can be added up by hand, on plans as in runs.
#include "offload/forecast/step_forecast.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "offload/forecast/forecast_text.h"
#include "offload/forecast/plan_search.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

// The number of compute threads and cores; with many more, lanes share nothing.
constexpr int kPlenty = 64;

// Returns a rate for every lane; computation takes almost no time.
MachineRates made_up_rates() {
  MachineRates rates;
  rates.source = "a test";
  rates.copy = 1e6;
  rates.link = {1e6, 1e6, 0, 0};
  rates.pin = 1e6;
  rates.files_read = 1e6;
  rates.files_written = 1e6;
  rates.updates = {{StateFormat::kFp32, 1e6}, {StateFormat::kSplitBf16, 1e6}};
  rates.drives = {{"*", 1e6, 1e6, 0, 0}};
  rates.groups = {{DeviceKind::kCpu, 2, {1e6}, {1e6}, {1e6}}};
  rates.compute = {{DeviceKind::kCpu, DType::kF32, {{64, 1e6}}, 1e6}};
  return rates;
}

ForecastInputs forecast_inputs_of(const ModelSpec& model) {
  ForecastInputs inputs;
  inputs.units.assign(model.units.size(), {.products = 10.0, .attention = 1.0, .width = 64.0});
  inputs.tokens_per_step = 350;
  inputs.cores = kPlenty;
  return inputs;
}

PlanInputs plan_inputs_of(const ModelSpec& model) {
  PlanInputs inputs = made_up_inputs(model);
  inputs.compute_threads = kPlenty;
  return inputs;
}

struct Case {
  ModelSpec model = fakes::make_small_model(3, false);
  Machine machine = made_up_machine();
  PlanInputs inputs = plan_inputs_of(model);
  ForecastInputs forecast = forecast_inputs_of(model);
  MachineRates rates = made_up_rates();

  TierPlan plan() const { return draft_tier_plan(inputs, machine); }
  StepForecast step() const { return forecast_step(plan(), model, forecast, rates); }
};

double lane(const StepForecast& step, Lane lane) {
  return step.of(step.alone, lane);
}

// A lane takes its bytes divided by its rate.
TEST(StepForecast, LanesTakeBytesOverRates) {
  const Case one;
  const TierPlan plan = one.plan();
  const StepForecast step = one.step();
  ASSERT_TRUE(step.known());
  const StepTraffic& traffic = plan.step.traffic;
  const double h2d = static_cast<double>(plan.step.moved(OpKind::kFetch));
  EXPECT_DOUBLE_EQ(lane(step, Lane::kH2D), h2d / 1e6);
  EXPECT_DOUBLE_EQ(lane(step, Lane::kD2H), static_cast<double>(traffic.d2h) / 1e6);
  EXPECT_NEAR(lane(step, Lane::kUpdate), static_cast<double>(traffic.update_dram) / 1e6, 1e-12);
  EXPECT_EQ(lane(step, Lane::kGather), 0.0);
  EXPECT_GE(step.seconds, lane(step, step.wall));
  EXPECT_DOUBLE_EQ(step.tokens_per_second, 350.0 / step.seconds);
}

// Goal: a step waits for the rank with most work: here the first, whose last micro-batch is short.
TEST(StepForecast, TheRankWithMostDecides) {
  Case one;
  one.inputs.topology = make_topology(ShardStrategy::kFullShard, 2, 2);
  one.inputs.sequences_per_step = 5;
  one.forecast.tokens_per_step = 250;  // micro-batches of 100, 100 and 50
  const auto units = static_cast<double>(one.model.units.size());
  const double forward = (10.0 + 1.0) * 150 / 1e6, backward = (30.0 + 3.5) * 150 / 1e6;
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), (units - 1) * forward + units * backward, 1e-12);
  one.inputs.sequences_per_step = 7;
  one.forecast.tokens_per_step = 350;  // one more, so that both ranks have two
  EXPECT_NEAR(lane(one.step(), Lane::kCompute),
              ((units - 1) * forward + units * backward) * 200 / 150, 1e-12);
}

// Goal: products with adapters take the bytes of the rows that they move over their own rate. They
// counted as operations of large products, of which they have almost none: the plan of LoRA on an
// 8B model was 21 % too short on an H200.
TEST(StepForecast, ProductsWithAdaptersTakeTheirBytes) {
  Case one;
  const double without = lane(one.step(), Lane::kCompute);
  for (UnitFlops& unit : one.forecast.units) unit.adapter_inputs = 6.0, unit.adapter_outputs = 5.0;
  EXPECT_EQ(lane(one.step(), Lane::kCompute), without) << "a machine without this rate";
  one.rates.compute.front().adapters = 1e6;
  // Forward moves x and twice the outputs; backward four times x, twice the outputs, and forward's.
  const double forward = 6.0 + 10.0, backward = 24.0 + 10.0 + forward;
  const auto units = static_cast<double>(one.model.units.size());
  EXPECT_NEAR(lane(one.step(), Lane::kCompute) - without,
              ((units - 1) * forward + units * backward) * 350 * 4 / 1e6, 1e-9);
}

// Goal: a few threads update at their own rate, up to the memory bandwidth of all ranks.
TEST(StepForecast, AnUpdateTakesItsThreads) {
  Case one;
  const auto bytes = static_cast<double>(one.plan().step.traffic.update_dram);
  for (UpdateRate& rate : one.rates.updates) rate.one_thread = 3e5;
  for (const auto& [threads, ranks, rate] :
       {std::tuple(1, 1, 3e5), {2, 1, 6e5}, {8, 1, 1e6}, {1, 2, 3e5}, {2, 2, 5e5}}) {
    one.inputs.optimizer_threads = threads;
    one.forecast.ranks_per_node = ranks;
    EXPECT_NEAR(lane(one.step(), Lane::kUpdate), bytes / rate, 1e-9) << threads << " " << ranks;
  }
}

// Goal: an update on two threads for each core takes what the cores' own threads take: it counted
// as if the machine had half as many cores.
TEST(StepForecast, SecondThreadsOfCoresTakeNoTime) {
  Case one;
  one.forecast.cores = 4;
  one.inputs.optimizer_threads = 4;
  const StepForecast cores = one.step();
  one.inputs.optimizer_threads = 8;
  const StepForecast threads = one.step();
  EXPECT_NEAR(threads.of(threads.busy, Lane::kUpdate), cores.of(cores.busy, Lane::kUpdate), 1e-9);
  EXPECT_NEAR(threads.seconds, cores.seconds, 1e-9);
}

// Goal: forward once, backward with the forward that it repeats, attention's backward two and a
// half times its forward; what is kept is not repeated.
TEST(StepForecast, ComputationIsCountedByPasses) {
  Case one;
  // A step has at most 350 tokens, of 4 micro-batches of 100 positions.
  const double products = 10.0 * 350 / 1e6, attention = 1.0 * 350 / 1e6;
  const auto units = static_cast<double>(one.model.units.size());
  const double forwards = (units - 1) * (products + attention);
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), forwards + units * (3 * products + 3.5 * attention),
              1e-12);
  for (size_t u = 1; u <= 3; ++u) one.model.units[u].results = {{.elements_per_position = 64}};
  one.inputs.keep_results = KeptResults::kAttention;
  EXPECT_NEAR(lane(one.step(), Lane::kCompute),
              forwards + units * (3 * products + 3.5 * attention) - 3 * attention, 1e-12);
  one.inputs.keep_results = KeptResults::kNone;
  one.inputs.recompute = false;
  EXPECT_NEAR(
      lane(one.step(), Lane::kCompute),
      forwards + (units - 1) * (2 * products + 2.5 * attention) + (3 * products + 3.5 * attention),
      1e-12);
}

// Products whose results are kept are not counted again: outputs times the hidden size, and the
// mixer's last product, whose inputs are as wide as attention's result.
TEST(StepForecast, KeptProductsAreNotCountedAgain) {
  Case one;
  const int64_t hidden = one.model.units[1].carry_out.front().elements_per_position;
  for (UnitFlops& unit : one.forecast.units) unit.products = 100.0 * static_cast<double>(hidden);
  const auto with = [&](KeptResults kept) {
    one.inputs.keep_results = kept;
    return lane(one.step(), Lane::kCompute);
  };
  for (size_t u = 1; u <= 3; ++u) {
    one.model.units[u].results = {
        {.elements_per_position = 6},
        {.elements_per_position = 3, .kept_from = KeptResults::kHeads},
        {.elements_per_position = hidden, .kept_from = KeptResults::kMiddle},
        {.elements_per_position = 20, .kept_from = KeptResults::kMlp}};
  }
  // 350 tokens, three blocks, two operations for each element, a million operations a second.
  const double of_element = 350 * 3 * 2.0 * static_cast<double>(hidden) / 1e6;
  const double attention = with(KeptResults::kAttention);
  EXPECT_NEAR(with(KeptResults::kHeads), attention - 3 * of_element, 1e-12);
  EXPECT_NEAR(with(KeptResults::kMiddle), attention - 9 * of_element, 1e-12);
  EXPECT_NEAR(with(KeptResults::kMlp), attention - 29 * of_element, 1e-12);
}

// Measured units take their measured seconds.
TEST(StepForecast, MeasuredUnitsTakeTheirOwnSeconds) {
  Case one;
  for (UnitFlops& unit : one.forecast.units) unit.measured = {{0, {0.001, 0.003}}};
  one.rates.compute.clear();
  const auto units = static_cast<double>(one.model.units.size());
  const double measured = 350 * (0.001 * (units - 1) + 0.003 * units);
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), measured, 1e-9);
  // Attention that backward need not compute again takes the machine's rate.
  for (size_t u = 1; u <= 3; ++u) one.model.units[u].results = {{.elements_per_position = 64}};
  one.inputs.keep_results = KeptResults::kAttention;
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), measured, 1e-9) << "a machine without this rate";
  one.rates.compute = {{DeviceKind::kCpu, DType::kF32, {}, 1e4}};
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), measured - 3 * 350 * 1.0 / 1e4, 1e-9);
}

// Goal: a unit that was measured at two sizes has a fixed cost per micro-batch.
TEST(StepForecast, MeasuredUnitsTakeLessAPositionInLargerMicroBatches) {
  Case one;
  // Forward takes 0.1 s and 0.001 s per position, backward three times that.
  for (UnitFlops& unit : one.forecast.units) {
    unit.measured = {{100, {0.002, 0.006}}, {200, {0.0015, 0.0045}}};
  }
  const auto units = static_cast<double>(one.model.units.size());
  const double passes = (units - 1) + 3 * units;
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), 350 * 0.002 * passes, 1e-9);
  one.inputs.micro_batch *= 4;
  EXPECT_NEAR(lane(one.step(), Lane::kCompute), 350 * 0.00125 * passes, 1e-9);
}

// A missing rate makes the forecast unknown.
TEST(StepForecast, NothingIsMadeUpWhereARateIsMissing) {
  Case one;
  one.rates.updates.clear();
  one.rates.compute.clear();
  const StepForecast step = one.step();
  EXPECT_FALSE(step.known());
  EXPECT_EQ(step.seconds, 0.0);
  EXPECT_EQ(step.unknown.size(), 2u) << testing::PrintToString(step.unknown);
  const PlanScreen screen{.forecast = {.step = step}, .source = "a test"};
  const std::string text = format_screen(one.plan(), one.machine, screen);
  EXPECT_NE(text.find("these rates are missing: "), std::string::npos) << text;
  EXPECT_NE(text.find("longshore check machine --rates"), std::string::npos) << text;
  EXPECT_EQ(text.find("tokens/s"), std::string::npos) << text;
}

// Gathers and reductions take the rate of their group.
TEST(StepForecast, RanksGatherAndReduceAtTheRateOfTheirGroup) {
  Case one;
  one.inputs.topology = make_topology(ShardStrategy::kFullShard, 2, 2);
  const StepTraffic traffic = one.plan().step.traffic;
  const StepForecast step = one.step();
  ASSERT_TRUE(step.known()) << testing::PrintToString(step.unknown);
  EXPECT_DOUBLE_EQ(lane(step, Lane::kGather), static_cast<double>(traffic.all_gather) / 1e6);
  EXPECT_DOUBLE_EQ(lane(step, Lane::kReduce), static_cast<double>(traffic.reduce_scatter) / 1e6);
  // A collective has a least time whatever it moves; frozen units have no reduction.
  one.rates.groups.front().reduce_scatter.start_seconds = 3.0;
  const auto units = static_cast<double>(one.model.units.size());
  EXPECT_DOUBLE_EQ(lane(one.step(), Lane::kReduce),
                   static_cast<double>(traffic.reduce_scatter) / 1e6 + 3.0 * units);
  one.rates.groups.front().reduce_scatter.start_seconds = 0.0;
  one.forecast.cores = 1.0;  // compute, gathers and sums share one core
  const double copied = one.step().seconds;
  one.rates.groups.front().gather.core_share = one.rates.groups.front().reduce_scatter.core_share =
      0.0;
  EXPECT_LT(one.step().seconds, copied) << "a network moves while the core computes";
  EXPECT_DOUBLE_EQ(lane(one.step(), Lane::kGather), lane(step, Lane::kGather));
  one.rates.groups.front().ranks = 4;
  EXPECT_FALSE(one.step().known());
}

// Drives share the state by their rates, and ranks share the drives.
TEST(StepForecast, DrivesShareTheStateAndRanksTheDrives) {
  Case one;
  one.inputs.nvme.state = true;
  one.inputs.nvme.directories = {"/one", "/two"};
  one.rates.drives = {{"/one", 2e6, 2e6, 0, 0}, {"/two", 1e6, 1e6, 0, 0}};
  const auto read = static_cast<double>(one.plan().step.traffic.nvme_read);
  EXPECT_NEAR(lane(one.step(), Lane::kRead), read / 2e6, 1e-9) << "the slower decides";
  one.forecast.ranks_per_node = 2;
  EXPECT_NEAR(lane(one.step(), Lane::kRead), read / 1e6, 1e-9);
  // The cores that reads use add nothing to the read lane, but slow computation.
  one.forecast.cores = 1.0;
  one.inputs.compute_threads = 1;
  const double free = one.step().seconds;
  for (DriveRates& drive : one.rates.drives) drive.read_core_share = 1.0;
  EXPECT_NEAR(lane(one.step(), Lane::kRead), read / 1e6, 1e-9);
  EXPECT_GT(one.step().seconds, free);
}

// Reads of a frozen model's own files have the rate of such files, which ranks share; an unknown
// rate is named.
TEST(StepForecast, FrozenParametersComeAtTheRateOfModelFiles) {
  Case one;
  for (ParamSpec& parameter : one.model.units[1].parameters) parameter.frozen = true;
  one.inputs.frozen_files = std::make_shared<const FrozenFiles>();
  one.inputs.fill_host = false;
  one.rates.files_read = 5e5;
  const auto read = static_cast<double>(one.plan().step.traffic.files_read);
  EXPECT_GT(read, 0.0);
  EXPECT_NEAR(lane(one.step(), Lane::kRead), read / 5e5, 1e-9);
  one.forecast.ranks_per_node = 2;
  EXPECT_NEAR(lane(one.step(), Lane::kRead), 2 * read / 5e5, 1e-9);
  one.rates.files_read = 0.0;
  EXPECT_EQ(one.step().unknown, std::vector<std::string>{"reading the model's files"});
}

// Goal: lanes of the CPU device share the cores, so a step takes at least the sum of their work.
TEST(StepForecast, TheCpuDeviceSharesItsCores) {
  Case one;
  one.forecast.cores = 4;
  one.inputs.compute_threads = one.inputs.optimizer_threads = 4;
  const StepForecast step = one.step();
  const double all = lane(step, Lane::kCompute) + lane(step, Lane::kUpdate);
  EXPECT_GE(step.seconds, all * (1 - 1e-9));
  EXPECT_GT(step.of(step.busy, Lane::kUpdate), lane(step, Lane::kUpdate)) << "it waits for cores";
}

// Goal: a forward of other rows before the step's own, as KTO has, is counted in time and bytes. It
// reads the updated weights, so that no forward hides the update.
TEST(StepForecast, AForwardBeforeTheStepIsCounted) {
  for (const UpdateOverlap overlap :
       {UpdateOverlap::kForward, UpdateOverlap::kNone, UpdateOverlap::kBackward}) {
    Case one;
    one.inputs.overlap = overlap;
    const StepPlan alone = one.plan().step;
    const StepForecast step = one.step();
    one.inputs.loss.forward_first = true;
    const StepPlan with = one.plan().step;
    Bytes fetched = 0;
    for (const Op& op : with.schedules.forward.ops) {
      fetched += op.kind == OpKind::kFetch ? op.bytes : 0;
    }
    EXPECT_GT(fetched, 0);
    EXPECT_GE(with.moved(OpKind::kFetch), alone.moved(OpKind::kFetch) + fetched);
    EXPECT_EQ(with.moved(OpKind::kUpdate), alone.moved(OpKind::kUpdate));
    EXPECT_EQ(with.passes().size(), overlap == UpdateOverlap::kBackward ? 2u : 3u);
    const StepForecast more = one.step();
    EXPECT_GT(more.seconds, step.seconds + 0.9 * step.forward_seconds);
    EXPECT_NEAR(lane(more, Lane::kUpdate), lane(step, Lane::kUpdate), 1e-9);
  }
}

// The forecast of a run adds up steps, checkpoints and evaluations.
TEST(RunForecast, AddsUpTheRun) {
  const Case one;
  RunLength length;
  length.steps = 1000;
  length.checkpoint_steps = 400;
  length.evaluates = true;
  length.evaluation_steps = 500;
  length.evaluation_sequences = 14;
  length.sequences_per_step = 7;
  length.weight_bytes = 3'000'000;
  const TierPlan plan = one.plan();
  const RunForecast run = forecast_run(one.step(), plan, length, one.rates, 1000, 1);
  EXPECT_EQ(run.checkpoints, 3);
  EXPECT_EQ(run.evaluations, 2);
  EXPECT_DOUBLE_EQ(*run.read_model, 3.0);
  EXPECT_DOUBLE_EQ(*run.checkpoint, static_cast<double>(plan.checkpoint_bytes) / 1e6);
  EXPECT_DOUBLE_EQ(*run.evaluation, 2.0 * run.step.forward_seconds);
  EXPECT_NEAR(
      *run.run,
      1000 * run.step.seconds + 3 * *run.checkpoint + 2 * *run.evaluation + *run.first_step(),
      1e-6);
  EXPECT_NEAR(*run.watt_hours, 1000 * *run.run / 3600, 1e-6);
  length.steps = 0;
  EXPECT_FALSE(forecast_run(one.step(), plan, length, one.rates, 1000, 1).run);
}

// Goal: the lane with a wrong rate is named, and the next plan with its factor is right.
TEST(PlanCheck, BlamesTheLaneThatWasOffAndCorrectsIt) {
  Case one;
  // Lanes do not share cores.
  one.inputs.compute_threads = 1'000'000;
  one.forecast.cores = 1'000'100;
  const StepForecast planned = one.step();
  Case slower = one;
  slower.forecast.corrections[static_cast<size_t>(Lane::kUpdate)] = 2.0;
  const StepForecast real = slower.step();
  PlanCheck check(planned, kNoCorrection);
  check.add(1000.0, {});  // the first step, which allocates
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(check.complete());
    check.add(real.seconds, real.busy);
  }
  ASSERT_TRUE(check.complete());
  EXPECT_EQ(check.blamed(), Lane::kUpdate);
  EXPECT_NE(check.text().find("largest error: the update lane"), std::string::npos) << check.text();
  one.forecast.corrections = check.factors();
  EXPECT_NEAR(one.step().seconds, real.seconds, 1e-9);
}

// Goal: rates that are 28 times too slow are corrected in full by the first run.
TEST(PlanCheck, CorrectsRatesThatAreOffByTens) {
  Case one;
  one.inputs.compute_threads = 1'000'000;
  one.forecast.cores = 1'000'100;
  const StepForecast real = one.step();
  Case slow = one;
  for (double& correction : slow.forecast.corrections) correction = 28.0;
  PlanCheck check(slow.step(), kNoCorrection);
  check.add(1000.0, {});
  for (int i = 0; i < 4; ++i) check.add(real.seconds, real.busy);
  const LaneFactors factors = check.factors();
  EXPECT_NEAR(factors[static_cast<size_t>(Lane::kCompute)], 1.0 / 28.0, 1e-6);
}

// The search finds the key that removes the limit.
TEST(PlanSearch, FindsTheKeyThatMovesTheWall) {
  Case one;
  one.inputs.device_cap = std::nullopt;
  PlanSearch search(one.inputs, one.machine, search_axes(one.inputs, {}),
                    [&](const PlanInputs&, const TierPlan& plan) {
                      return forecast_step(plan, one.model, one.forecast, one.rates);
                    });
  const std::vector<PlanPoint> points = search.frontier();
  ASSERT_FALSE(points.empty());
  const PlanPoint* own = search.at(std::vector<size_t>(points.front().choice.size(), 0));
  ASSERT_NE(own, nullptr);
  EXPECT_LE(points.front().seconds, own->seconds);
  EXPECT_TRUE(std::ranges::is_sorted(points, {}, &PlanPoint::seconds));
  for (const PlanPoint& point : points) {
    for (const PlanPoint& other : points) {
      const bool beaten = other.seconds < point.seconds && other.device < point.device &&
                          other.host < point.host && other.drives <= point.drives;
      EXPECT_FALSE(beaten);
    }
  }
  for (const PlanPoint& point : search.one_change()) EXPECT_LE(point.changes.size(), 1u);
}

// Goal: the search takes the largest micro-batch if units then take less per position; units
// measured at one size do not decide.
TEST(PlanSearch, TakesLargerMicroBatchesWhereTheyComputeFaster) {
  Case one;
  const auto axes = search_axes(one.inputs, {});
  const auto micro_batch_of_fastest = [&](const std::vector<UnitPoint>& measured) {
    for (UnitFlops& unit : one.forecast.units) unit.measured = measured;
    PlanSearch search(one.inputs, one.machine, axes, [&](const PlanInputs&, const TierPlan& plan) {
      return forecast_step(plan, one.model, one.forecast, one.rates);
    });
    PlanInputs fastest = one.inputs;
    const std::vector<PlanPoint> points = search.frontier();
    for (const KeyChange& change : points.front().changes) change.apply(fastest);
    return fastest.micro_batch;
  };
  one.inputs.micro_batch = 1;
  EXPECT_EQ(micro_batch_of_fastest({{50, {0.3, 0.9}}, {200, {0.15, 0.45}}}), 4);
  EXPECT_EQ(micro_batch_of_fastest({{50, {0.3, 0.9}}}), 1);
}

PlanSearch search_of(const Case& one) {
  return {one.inputs, one.machine, search_axes(one.inputs, {}),
          [&one](const PlanInputs&, const TierPlan& plan) {
            return forecast_step(plan, one.model, one.forecast, one.rates);
          }};
}

// Goal: where only drives make room, it is enough that the run file names a directory on one.
TEST(PlanSearch, FindsThePlanWithDrivesByItself) {
  Case small{.model = fakes::make_small_model(24, false)};
  Bytes least = std::numeric_limits<Bytes>::max();
  for (const PlanPoint& point : search_of(small).frontier()) least = std::min(least, point.host);
  small.inputs.host_cap = least - 1;
  EXPECT_TRUE(search_of(small).frontier().empty());
  small.inputs.nvme.directories = {"/drive"};
  const std::vector<PlanPoint> points = search_of(small).frontier();
  ASSERT_FALSE(points.empty());
  for (const PlanPoint& point : points) {
    PlanInputs inputs = small.inputs;
    for (const KeyChange& change : point.changes) change.apply(inputs);
    EXPECT_TRUE(inputs.nvme.state || inputs.nvme.inputs);
  }
}

// Goal: a search that finds nothing knows the plan that lacks least, and reaches it where it fits.
TEST(PlanSearch, KnowsTheNearestPlanWhereNothingFits) {
  Case one;
  const auto device = [&one](const PlanInputs& inputs) {
    return draft_tier_plan(inputs, one.machine).device.total;
  };
  one.inputs.prefetch = 3;
  one.inputs.device_cap = 1;
  PlanSearch search = search_of(one);
  EXPECT_TRUE(search.frontier().empty());
  const SearchFailure failure = search.failure();
  EXPECT_TRUE(failure.unknown.empty());
  EXPECT_GE(failure.changes.size(), 2u);
  EXPECT_LT(device(failure.nearest), device(one.inputs));
  one.inputs.device_cap = device(failure.nearest);
  EXPECT_FALSE(search_of(one).frontier().empty());
}

// Plans that fit and have no time name the rates that are missing.
TEST(PlanSearch, NamesTheRatesThatPlansLack) {
  Case one;
  one.rates.updates.clear();
  PlanSearch search = search_of(one);
  EXPECT_TRUE(search.frontier().empty());
  EXPECT_EQ(search.failure().unknown, one.step().unknown);
}

// A search shows the fastest and the smallest of many plans, with the numbers of their files.
TEST(PlanSearch, ShowsFewPlans) {
  std::vector<PlanPoint> points;
  for (int i = 0; i < 20; ++i) {
    points.push_back({.choice = {},
                      .changes = {},
                      .seconds = 1.0 + i,
                      .device = (i == 17 ? 1 : 2) * kGiB,
                      .host = (i == 18 ? 1 : 2) * kGiB,
                      .drives = 0});
  }
  const std::string text = format_points(points);
  EXPECT_EQ(std::ranges::count(text, '\n'), 6) << text;
  for (const char* line : {"\n 1 ", "\n 2 ", "\n18 ", "\n19 "}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in:\n" << text;
  }
}

// Plans that differ by less than a forecast errs are one line.
TEST(PlanSearch, ShowsPlansThatAreAlikeOnce) {
  std::vector<PlanPoint> points;
  for (int i = 0; i < 24; ++i) {
    points.push_back({.choice = {},
                      .changes = {},
                      .seconds = 18.6 + 0.01 * i,
                      .device = (i < 12 ? 20 : 10) * kGiB + (24 - i) * kMiB,
                      .host = 40 * kGiB,
                      .drives = 0});
  }
  const std::string text = format_points(points);
  EXPECT_EQ(std::ranges::count(text, '\n'), 3) << "the head, the fastest, the smallest:\n" << text;
  EXPECT_NE(text.find("\n 1 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n24 "), std::string::npos) << text;
}

// Goal: the table begins with tokens/s, shows what a step reads and writes, and says how long a
// drive lasts under plans that write much.
TEST(PlanSearch, ShowsSpeedReadsAndWear) {
  const PlanPoint writes = {.choice = {},
                            .changes = {},
                            .seconds = 209.0,
                            .tokens_per_second = 313.4,
                            .device = 20 * kGiB,
                            .host = 100 * kGiB,
                            .drives = 600'000'000'000,
                            .read = 700 * kGiB};
  const std::string text = format_points({writes});
  EXPECT_NE(text.find("\n 1       313    3 min 29 s "), std::string::npos) << text;
  EXPECT_NE(text.find(" 700.0 GiB     558.8 GiB "), std::string::npos) << text;
  EXPECT_NE(
      text.find("plan 1 writes 600 TB to drives in 1000 steps; a drive rated for 1200 TB lasts "
                "2 000 steps, 4.8 days"),
      std::string::npos)
      << text;
  EXPECT_NE(
      format_points({writes}, Bytes{300'000'000'000'000}).find("its rated 300 TB last 500 steps"),
      std::string::npos);
  PlanPoint little = writes;
  little.drives = 1000;
  EXPECT_EQ(std::ranges::count(format_points({little}), '\n'), 2);
}

// Goal: the plan's text answers a new user's questions.
TEST(PlanScreen, AnswersTheQuestionsInWords) {
  const Case one;
  const TierPlan plan = one.plan();
  RunLength length;
  length.steps = 100;
  PlanScreen screen{.forecast = forecast_run(one.step(), plan, length, one.rates, {}, 1),
                    .source = "a test"};
  const std::string text = format_screen(plan, one.machine, screen);
  EXPECT_TRUE(text.starts_with("fits: device ")) << text;
  for (const char* part : {"a step takes about ", "tokens/s", "the first step starts after",
                           "a checkpoint takes about", "the run takes about",
                           "bottleneck: ", "to reduce it: ", "largest in memory", "--bytes"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }
  EXPECT_LE(std::ranges::count(text, '\n'), 24) << "one screen:\n" << text;
  const std::string brief = format_brief(plan, screen);
  EXPECT_TRUE(text.starts_with(brief.substr(0, brief.find('\n')))) << brief;
  EXPECT_NE(text.find(brief.substr(brief.find('\n') + 1)), std::string::npos) << brief;
  EXPECT_EQ(std::ranges::count(brief, '\n'), 2) << brief;
  EXPECT_EQ(std::ranges::count(format_brief(plan, {}), '\n'), 1) << "without rates";
  const std::string nobody = format_screen(plan, one.machine, {});
  EXPECT_NE(nobody.find("this machine is not measured yet; `longshore check machine --rates`"),
            std::string::npos)
      << nobody;
}

// Seconds are written in readable units.
TEST(PlanScreen, SecondsAreReadable) {
  EXPECT_EQ(rounded_seconds(0.0812), "81.2 ms");
  EXPECT_EQ(rounded_seconds(12.34), "12.3 s");
  EXPECT_EQ(rounded_seconds(600), "10 min");
  EXPECT_EQ(rounded_seconds(209.2), "3 min 29 s");
  EXPECT_EQ(rounded_seconds(12240), "3 h 24 min");
  EXPECT_EQ(rounded_seconds(86400 * 3), "3.0 days");
}

}  // namespace
}  // namespace longshore
