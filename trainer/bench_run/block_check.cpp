#include "trainer/bench_run/block_check.h"

#include <numeric>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "config/toml_document.h"
#include "offload/engine/engine.h"
#include "offload/engine/train_step.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/bench_run/bench_recipe.h"
#include "trainer/run/frozen_sums.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {
namespace {

constexpr int kSteps = 2;
constexpr int kSequences = 2;  // of a step, each a micro-batch

// Returns the run's keys for the block alone. Its state is in host memory, because what comes back
// from drives and files has checksums of its own.
RunArguments block_arguments(const RunArguments& arguments, const MeasuredRun& run,
                             const std::string& directory) {
  RunArguments block = arguments;
  const auto set = [&block](const std::string& key, const std::string& value) {
    block.overrides.push_back({key, value});
  };
  set("model.path", quote_toml(directory + "/model"));
  set("model.init", "random");
  set("run.dir", quote_toml(directory + "/run"));
  set("train.steps", std::to_string(kSteps));
  set("train.sequences_per_step", std::to_string(kSequences));
  set("train.micro_batch", "1");
  set("offload.parameters", "host");
  set("offload.optimizer", "host");
  set("offload.nvme", "[]");
  if (run.inputs.units.starts_with('"')) set("fsdp.units", run.inputs.units);
  return block;
}

// With shard_grad_op each unit has a slot of its own and stays in it from forward to backward.
RunArguments resident_arguments(RunArguments block) {
  block.overrides.push_back({"fsdp.strategy", "shard_grad_op"});
  block.overrides.push_back({"offload.activations", "device"});
  block.overrides.push_back({"offload.device_memory", "auto"});
  return block;
}

void add_state(Hasher& hasher, ShardStore::StateLease& state) {
  for (const Segment segment : kSegments) {
    const StateSpans spans = state.segment(segment);
    hasher.update(std::as_bytes(spans.master));
    hasher.update(std::as_bytes(spans.high));
    hasher.update(std::as_bytes(spans.low));
    hasher.update(spans.frozen);
    for (const MomentSpan& region : spans.regions) hasher.update(region.values);
  }
}

std::vector<Batch> batches_of(const MeasuredRun& run, int step) {
  const int64_t length = run.config.data.max_tokens;
  std::vector<int64_t> positions(static_cast<size_t>(length));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<Batch> batches;
  for (int i = 0; i < kSequences; ++i) {
    const auto row = static_cast<uint64_t>(step * kSequences + i);
    std::vector<int64_t> ids = random_tokens(run.source->arch().vocabulary, length + 1, row);
    batches.emplace_back(std::vector<int64_t>(ids.begin(), ids.end() - 1), positions,
                         std::vector<int64_t>(ids.begin() + 1, ids.end()),
                         std::vector<int64_t>{0, length});
  }
  return batches;
}

// Returns the hash of the losses and norms of the steps and of the state after them.
uint64_t digest_of_steps(const MeasuredRun& run, const TierPlan& plan) {
  RankGroups alone;
  alone.topology = run.topology;  // its strategy says whether units stay in their slots
  // Packed matrices are read through it, and must outlive the engine.
  std::optional<FrozenSums> frozen;
  if (run.source->packing().frozen() != nullptr) frozen.emplace(run.source->packing().frozen());
  Engine engine(&run.source->model(), plan, update_rule(run.config), alone, RunKey{},
                {.make_tiers = make_tiers_over(frozen ? &*frozen : nullptr)});
  load_initial_weights(engine, *run.source, nullptr);
  Hasher hasher;
  const auto add = [&hasher](double value) { hasher.update(std::as_bytes(std::span(&value, 1))); };
  const auto terms = static_cast<double>(kSequences * run.config.data.max_tokens);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<Batch> batches = batches_of(run, step);
    const StepOutcome outcome = train_step(engine, {.batches = engine.batches().load(batches),
                                                    .loss_terms = terms,
                                                    .lr = run.config.optimizer.lr,
                                                    .max_grad_norm = 1.0});
    add(outcome.loss);
    add(outcome.norm.norm);
  }
  engine.apply_updates();
  engine.state_sweep().each(
      [&hasher](UnitId, ShardStore::StateLease& state) { add_state(hasher, state); });
  return hasher.digest();
}

MeasuredRun measured(const RunArguments& arguments) {
  return MeasuredRun(OpenedRun(read_run(arguments, {}, SetupFor::kComputing)));
}

}  // namespace

std::string BlockCheck::result() const {
  if (!not_run.empty()) return "not run";
  return equal ? "equal" : "different";
}

Json BlockCheck::to_json() const {
  Json json = {{"what", "one block, through the run's slots and resident on the device"},
               {"result", result()}};
  if (!not_run.empty()) {
    json["reason"] = not_run;
    return json;
  }
  json["steps"] = steps;
  json["slots"] = slots;
  json["resident_slots"] = resident;
  return json;
}

BlockCheck check_block(const RunArguments& arguments, const MeasuredRun& run,
                       const std::string& directory) {
  make_directories(directory + "/model");
  write_file_durably(directory + "/model/config.json",
                     one_block_config(run.source->directory().config_text()));
  BlockCheck check{.steps = kSteps};
  try {
    const RunArguments block = block_arguments(arguments, run, directory);
    uint64_t through_slots = 0;
    {
      const MeasuredRun offloaded = measured(block);
      const TierPlan plan = offloaded.plan();
      check.slots = plan.device.slots;
      through_slots = digest_of_steps(offloaded, plan);
    }
    const MeasuredRun resident = measured(resident_arguments(block));
    const TierPlan plan = resident.plan();
    check.resident = plan.device.slots;
    check.equal = digest_of_steps(resident, plan) == through_slots;
  } catch (const DoesNotFitError& error) {
    const std::string text = error.what();
    check.not_run = text.substr(0, text.find('\n'));
  }
  return check;
}

}  // namespace longshore
