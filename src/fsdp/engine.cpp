#include "fsdp/engine.h"

#include "base/errors.h"
#include "nvme/state_files.h"

namespace longshore {

UnitCosts unit_costs(const Model& model, DType compute, int threads) {
  return [&model, compute, threads](int64_t positions, int64_t longest_document) {
    std::vector<UnitCost> costs;
    for (const UnitSpec& unit : model.spec().units) {
      const UnitWorkspace bound =
          model.workspace(unit.id, positions, longest_document, compute, threads);
      costs.push_back({.forward = bound.forward, .backward = bound.backward, .saved = bound.saved});
    }
    return costs;
  };
}

Engine::Engine(const Model* model, const TierPlan& plan, const AdamWOptions& adamw,
               const RankGroups& groups, const RunKey& state_key)
    : model_(model),
      plan_(plan),
      groups_(groups),
      layouts_(make_layouts(model->spec(), plan.topology.shard_ranks)),
      memory_(plan.device_cap, plan.device_owned),
      budget_(memory_),
      pool_(plan.optimizer_threads),
      store_(make_store(state_key)),
      ring_(make_ring()),
      prefetcher_(make_prefetcher()) {
  LONGSHORE_CHECK(groups.topology == plan.topology) << "the plan is for other groups of ranks";
  LONGSHORE_CHECK(store_->host_bytes() == plan.host_arena)
      << store_->host_bytes() << " host bytes, planned " << plan.host_arena;
  const auto micro_batches = static_cast<int32_t>(plan.micro_batches);
  batches_ =
      std::make_unique<BatchStage>(carve_named("batch"), micro_batches, plan.positions, &copies_);
  runner_ = std::make_unique<UnitRunner>(model, &layouts_, plan.state.compute,
                                         plan.recompute ? Recompute::kUnit : Recompute::kNone,
                                         &prefetcher_, plan.passes, make_runner_memory());
  reducer_ = std::make_unique<GradReducer>(groups_, &layouts_, plan.reduce,
                                           carve_if_planned("reduce_scratch"));
  drain_ = std::make_unique<GradDrain>(store_.get(), &copies_, layouts_, groups_.shard(),
                                       carve_if_planned("drain_staging"), &pool_);
  optimizer_ = std::make_unique<OptimizerPipeline>(store_.get(), layouts_, model->spec(),
                                                   groups_.shard(), adamw, &pool_);
  memory_.check_carved();
}

std::unique_ptr<ShardStore> Engine::make_store(const RunKey& state_key) {
  const bool cuda = plan_.device == DeviceKind::kCuda;
  if (!plan_.nvme.used()) {
    return std::make_unique<PinnedStore>(layouts_, plan_.state, cuda, &pool_);
  }
  NvmeStoreOptions options =
      nvme_options(plan_.nvme, plan_.state, plan_.topology, groups_.rank, state_key);
  options.register_with_gpus = cuda;
  const StateFileOptions files{.directories = plan_.nvme.directories, .rank = groups_.rank.value};
  auto store = std::make_unique<NvmeStore>(
      layouts_, options,
      [&files](const StripeMap& map, std::span<std::byte> window) {
        return open_state_files(files, map, window);
      },
      &pool_);
  drives_ = store.get();
  return store;
}

std::span<std::byte> Engine::carve(const PlannedBuffer& buffer) {
  return memory_.carve(buffer.name, buffer.bytes).bytes;
}

std::span<std::byte> Engine::carve_named(const std::string& name) {
  const PlannedBuffer* buffer = plan_.buffer(name);
  LONGSHORE_CHECK(buffer != nullptr) << "the plan has no buffer " << name;
  return carve(*buffer);
}

std::span<std::byte> Engine::carve_if_planned(const std::string& name) {
  return plan_.buffer(name) == nullptr ? std::span<std::byte>() : carve_named(name);
}

std::vector<std::span<std::byte>> Engine::carve_parts(const std::string& name) {
  const std::span<std::byte> whole = carve_if_planned(name);
  const auto count = static_cast<size_t>(plan_.micro_batches);
  LONGSHORE_CHECK(whole.size() % count == 0) << name << " is not in " << count << " equal parts";
  std::vector<std::span<std::byte>> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(whole.subspan(i * (whole.size() / count), whole.size() / count));
  }
  return parts;
}

StageRing Engine::make_ring() {
  std::vector<std::span<std::byte>> slots;
  for (int32_t i = 0; i < plan_.slots; ++i) {
    slots.push_back(carve_named("slot." + std::to_string(i)));
  }
  return StageRing(std::move(slots));
}

Prefetcher Engine::make_prefetcher() {
  return Prefetcher({.store = store_.get(),
                     .ring = &ring_,
                     .copies = &copies_,
                     .shards = groups_.shards,
                     .layouts = &layouts_,
                     .shard = groups_.shard()});
}

UnitRunner::Memory Engine::make_runner_memory() {
  UnitRunner::Memory memory;
  memory.gradient = carve_if_planned("gradient_accumulator");
  for (const UnitSpec& unit : spec().units) {
    const PlannedBuffer* waiting = plan_.buffer("waiting_gradient." + unit.name);
    memory.waiting_gradients.push_back(waiting == nullptr ? std::span<std::byte>()
                                                          : carve(*waiting));
    if (unit.id.value > 0) memory.carry.inputs.push_back(carve_parts("input." + unit.name));
  }
  memory.carry.gradients = carve_parts("output_gradient");
  return memory;
}

void Engine::load(const ParameterReader& read) {
  load_parameters(*store_, spec(), layouts_, groups_.shard(), read);
  updates_ = 0;
  advance_version();
}

PayloadCounters::Totals Engine::payload() const {
  PayloadCounters::Totals totals;
  for (const Communicator* group : {groups_.all, groups_.shards, groups_.replicas}) {
    if (group == nullptr) continue;
    for (const auto& [key, count] : group->counters().total().counts) totals.counts[key] += count;
  }
  return totals;
}

RankTimes Engine::take_times() {
  const auto now = std::chrono::steady_clock::now();
  const double waited = payload().all().waited_seconds;
  RankTimes times;
  times.seconds = std::chrono::duration<double>(now - times_begin_).count();
  times.waited = waited - waited_before_;
  times.updated = optimizer_->take_seconds();
  times_begin_ = now;
  waited_before_ = waited;
  return times;
}

void Engine::advance_version() {
  version_.value += 1;
  prefetcher_.set_version(version_);
}

}  // namespace longshore
