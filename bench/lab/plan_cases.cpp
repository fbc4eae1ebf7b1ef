#include "bench/lab/plan_cases.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "bench/lab/draws.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/models/decoder_model.h"
#include "model/parameters/model_spec.h"
#include "model/parameters/unit_cut.h"
#include "trainer/setup/run_flops.h"

namespace longshore {
namespace {

enum Key : uint8_t {
  kRanks,
  kStrategy,
  kPrefetch,
  kUnits,
  kRecompute,
  kActivations,
  kState,
  kOverlap,
  kGather,
  kMicroBatches,
  kFormat,
  kHead,
  kFrozen,
};

constexpr std::array<int32_t, 3> kRankCounts = {1, 2, 4};
constexpr int32_t kHybridRanks = 2;
constexpr int64_t kVocabulary = 4096, kTokens = 64, kMicroBatch = 2;
constexpr std::array<double, 4> kLaneShares = {0.25, 0.5, 1.0, 2.0};  // relative to compute
constexpr int kCandidates = 40;  // candidates, of which the one with most new pairs is used
constexpr int kPairDraws = 20000;
// Lanes share no cores: all lanes but the update stand for other devices.
constexpr double kPlenty = 64.0;

using Pair = std::array<size_t, 4>;  // key, value, key, value

std::set<Pair> pairs_of(const CaseChoice& choice) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < kCaseKeyCount; ++a) {
    for (size_t b = a + 1; b < kCaseKeyCount; ++b) pairs.insert({a, choice[a], b, choice[b]});
  }
  return pairs;
}

ShardTopology topology_of(const CaseChoice& choice) {
  return make_topology(static_cast<ShardStrategy>(choice[kStrategy]), kRankCounts[choice[kRanks]],
                       kHybridRanks);
}

bool can_be_run(const CaseChoice& choice) {
  const auto strategy = static_cast<ShardStrategy>(choice[kStrategy]);
  const int32_t ranks = kRankCounts[choice[kRanks]];
  if (ranks == 1) return strategy == ShardStrategy::kFullShard && choice[kGather] == 0;
  if (strategy == ShardStrategy::kHybridShard && ranks <= kHybridRanks) return false;
  // Host gather needs shards (as in why_not_on_host) and state in host memory; other keys are free.
  return choice[kGather] == 0 || (strategy != ShardStrategy::kNoShard && choice[kState] == 0);
}

CaseChoice draw_choice(Draws& draws) {
  CaseChoice choice = {};
  do {
    for (size_t key = 0; key < kCaseKeyCount; ++key) {
      const auto values = static_cast<uint32_t>(case_keys()[key].values.size());
      choice[key] = static_cast<uint8_t>(draws.below(values));
    }
    if (choice[kRanks] == 0) choice[kStrategy] = choice[kGather] = 0;
  } while (!can_be_run(choice));
  return choice;
}

DecoderModel make_model(const CaseChoice& choice) {
  Json config = Json::parse(init_preset_config("small-llama", {.vocabulary = kVocabulary}));
  config["tie_word_embeddings"] = choice[kHead] == 0;
  const ArchSpec arch = read_arch_spec(config, "the bench's model");
  ModelSpec whole = make_model_spec(arch, {});
  if (choice[kFrozen] != 0) {
    const std::vector<std::string> globs = {"model.layers.[024].*"};
    freeze_parameters(whole, globs, "the bench");
  }
  UnitPolicy policy;
  policy.kind = static_cast<UnitPolicy::Kind>(choice[kUnits]);
  return {arch, whole, cut_for(policy, arch)};
}

// Costs of units matter to a schedule only with recompute "auto".
UnitCosts costs_of(size_t units) {
  return [units](int64_t positions, int64_t) {
    const Bytes least = positions * kKiB;
    std::vector<UnitCost> costs(units, {.forward = least, .backward = 3 * least, .saved = least});
    costs.back().saved = 0;
    return costs;
  };
}

Machine big_machine() {
  Machine machine;
  machine.cpu_model = "a bench's";
  machine.physical_cores = machine.logical_cores = static_cast<int>(kPlenty);
  machine.ram_total = machine.ram_available = 256 * kGiB;
  CudaDevice gpu;
  gpu.name = "a bench's";
  gpu.memory_bytes = 80 * kGiB;
  machine.gpus = {gpu};
  return machine;
}

PlanInputs plan_inputs_of(const CaseChoice& choice, const ModelSpec& model, Draws& draws) {
  PlanInputs inputs;
  inputs.model = &model;
  inputs.costs = costs_of(model.units.size());
  inputs.state.format = kStateFormats[choice[kFormat]].format;
  inputs.state.compute = inputs.state.drain = DType::kBF16;
  inputs.topology = topology_of(choice);
  const int32_t ranks = inputs.topology.ranks;
  inputs.ranks_per_node = ranks;
  inputs.micro_batch = kMicroBatch;
  inputs.max_tokens = kTokens;
  // The largest rank has choice + 1 micro-batches; other ranks may have one less or a short one.
  const int64_t most = kMicroBatch * ranks * (choice[kMicroBatches] + 1);
  inputs.sequences_per_step = most - draws.below(static_cast<uint32_t>(kMicroBatch * ranks));
  inputs.prefetch = choice[kPrefetch];
  inputs.recompute = choice[kRecompute] != 1;
  inputs.offload_inputs = choice[kActivations] != 0;
  inputs.nvme.inputs = choice[kActivations] == 2;
  inputs.nvme.state = choice[kState] != 0;
  inputs.nvme.parameters = choice[kState] == 2;
  if (inputs.nvme.used()) inputs.nvme.directories = {"/drive"};
  constexpr std::array kOverlaps = {UpdateOverlap::kForward, UpdateOverlap::kBackward,
                                    UpdateOverlap::kNone};
  inputs.overlap = kOverlaps[choice[kOverlap]];
  inputs.gather = choice[kGather] == 0 ? GatherMode::kCollective : GatherMode::kHost;
  inputs.device = DeviceKind::kCuda;
  return inputs;
}

// With recompute "auto" the device has memory for about half of the graphs.
TierPlan plan_of(const CaseChoice& choice, PlanInputs inputs) {
  const Machine machine = big_machine();
  if (choice[kRecompute] == 2) {
    const Bytes least = draft_tier_plan(inputs, machine).device.total;
    inputs.recompute = false;
    const Bytes most = draft_tier_plan(inputs, machine).device.total;
    inputs.recompute = inputs.keep_what_fits = true;
    inputs.device_cap = (least + most) / 2;
  }
  TierPlan plan = draft_tier_plan(inputs, machine);
  LONGSHORE_CHECK(plan.fits()) << "a case that does not fit";
  return plan;
}

ForecastInputs forecast_inputs_of(const DecoderModel& model, const PlanInputs& plan) {
  ForecastInputs inputs;
  for (const UnitSpec& unit : model.spec().units) {
    inputs.units.push_back(flops_of_unit(model, unit.id, kTokens));
  }
  inputs.tokens_per_step = plan.sequences_per_step * kTokens;
  inputs.ranks_per_node = plan.ranks_per_node;
  inputs.cores = kPlenty;
  inputs.compute = DType::kBF16;
  return inputs;
}

using LaneSpeeds = std::array<double, kLaneCount>;

MachineRates rates_of(const LaneSpeeds& speeds, const TierPlan& plan) {
  const auto of = [&](Lane lane) { return speeds[static_cast<size_t>(lane)]; };
  MachineRates rates;
  rates.source = "timers";
  rates.link.to_device = of(Lane::kH2D);
  rates.link.to_host = of(Lane::kD2H);
  rates.updates = {{plan.state.format, of(Lane::kUpdate)}};
  rates.drives = {{"*", of(Lane::kRead), of(Lane::kWrite), 0.0, 0.0}};
  for (const int32_t ranks : {plan.topology.shard_ranks, plan.topology.replicas()}) {
    const CollectiveRate gather{of(Lane::kGather)}, reduce{of(Lane::kReduce)};
    rates.groups.push_back({DeviceKind::kCuda, ranks, gather, reduce, reduce});
  }
  const double flops = of(Lane::kCompute);
  rates.compute = {{DeviceKind::kCuda, DType::kBF16, {{1.0, flops}}, flops}};
  return rates;
}

MachineRates draw_rates(const TierPlan& plan, const ModelSpec& model, const ForecastInputs& inputs,
                        Draws& draws, double step_seconds) {
  LaneSpeeds speeds;
  speeds.fill(1.0);
  const StepForecast plain = forecast_step(plan, model, inputs, rates_of(speeds, plan));
  LONGSHORE_CHECK(plain.known()) << plain.unknown.front();
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    const double share = kLaneShares[draws.below(kLaneShares.size())];
    const bool computes = lane == static_cast<size_t>(Lane::kCompute);
    if (plain.alone[lane] > 0.0) speeds[lane] = plain.alone[lane] / (computes ? 1.0 : share);
  }
  const StepForecast scaled = forecast_step(plan, model, inputs, rates_of(speeds, plan));
  for (double& speed : speeds) speed *= scaled.seconds / step_seconds;
  return rates_of(speeds, plan);
}

// Rank k runs the micro-batches k modulo ranks; the last one may be short.
std::vector<double> compute_shares(const PlanInputs& inputs) {
  std::vector<double> sequences(static_cast<size_t>(inputs.topology.ranks), 0.0);
  for (int64_t first = 0, batch = 0; first < inputs.sequences_per_step;
       first += inputs.micro_batch, ++batch) {
    sequences[static_cast<size_t>(batch % inputs.topology.ranks)] +=
        static_cast<double>(std::min(inputs.micro_batch, inputs.sequences_per_step - first));
  }
  const double most = *std::ranges::max_element(sequences);
  for (double& share : sequences) share /= most;
  return sequences;
}

TimedStep timed_step(const TierPlan& plan, const ModelSpec& model, const ForecastInputs& inputs,
                     const MachineRates& rates) {
  TimedStep step;
  std::vector<std::string> unknown;
  const auto time = [&](const StepSchedule& schedule) {
    return all_of(operation_seconds(schedule, plan, model, inputs, rates, unknown));
  };
  step.schedule = plan.step.schedules.train;
  step.seconds = time(step.schedule);
  if (plan.step.overlap == UpdateOverlap::kNone) {
    step.updates = plan.step.schedules.flush;
    step.update_seconds = time(step.updates);
  }
  for (const Op& op : step.schedule.ops) {
    step.gathers = step.gathers || op.kind == OpKind::kGather;
    for (const Placed& placed : op.placed())
      step.slots = std::max(step.slots, placed.slot.value + 1);
  }
  return step;
}

}  // namespace

const std::array<CaseKey, kCaseKeyCount>& case_keys() {
  static const std::array<CaseKey, kCaseKeyCount> keys = {{
      {"ranks", {"1", "2", "4"}},
      {"strategy", {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"}},
      {"prefetch", {"0", "1", "2", "3"}},
      {"units", {"block", "half", "piece"}},
      {"recompute", {"unit", "none", "auto"}},
      {"activations", {"device", "host", "nvme"}},
      {"on drives", {"nothing", "state", "state and parameters"}},
      {"overlap", {"forward", "backward", "none"}},
      {"gather", {"collective", "host"}},
      {"micro-batches", {"1", "2", "3"}},
      {"state_format", {"fp32", "split", "split-bf16", "split-int8"}},
      {"head", {"tied", "own"}},
      {"frozen", {"nothing", "every second block"}},
  }};
  return keys;
}

CaseCover draw_choices(int32_t count, uint32_t seed) {
  CaseCover cover;
  std::set<Pair> all, covered;
  Draws pairs(seed, 0), draws(seed, 1);
  for (int i = 0; i < kPairDraws; ++i) all.merge(pairs_of(draw_choice(pairs)));
  for (int32_t i = 0; i < count; ++i) {
    CaseChoice best = {};
    size_t most = 0;
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      const CaseChoice choice = draw_choice(draws);
      const auto added = static_cast<size_t>(std::ranges::count_if(
          pairs_of(choice), [&](const Pair& pair) { return !covered.contains(pair); }));
      if (candidate > 0 && added <= most) continue;
      best = choice;
      most = added;
    }
    covered.merge(pairs_of(best));
    cover.choices.push_back(best);
  }
  cover.pairs = covered.size();
  cover.pairs_all = all.size();
  return cover;
}

PlanCase make_plan_case(const CaseChoice& choice, uint32_t seed, double step_seconds) {
  Draws draws(seed, 2);
  const DecoderModel model = make_model(choice);
  const PlanInputs inputs = plan_inputs_of(choice, model.spec(), draws);
  const TierPlan plan = plan_of(choice, inputs);
  const ForecastInputs forecast = forecast_inputs_of(model, inputs);
  const MachineRates rates = draw_rates(plan, model.spec(), forecast, draws, step_seconds);
  PlanCase made;
  made.choice = choice;
  made.forecast = forecast_step(plan, model.spec(), forecast, rates);
  made.step = timed_step(plan, model.spec(), forecast, rates);
  made.ranks = {.ranks = inputs.topology.ranks,
                .shard_ranks = inputs.topology.shard_ranks,
                .share_drives = true,
                .compute = compute_shares(inputs)};
  return made;
}

}  // namespace longshore
