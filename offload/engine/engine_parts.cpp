#include "offload/engine/engine_parts.h"

#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

// Carves the plan's buffers from the device's arena.
class PlannedBuffers {
 public:
  PlannedBuffers(const TierPlan& plan, DeviceMemory& memory) : plan_(plan), memory_(memory) {}

  // Returns the buffer, empty if the plan has none of that key.
  std::span<std::byte> if_planned(BufferKey key) {
    const PlannedBuffer* buffer = plan_.device.buffer(key);
    if (buffer == nullptr) return {};
    return memory_.carve(buffer->name, buffer->bytes).bytes;
  }
  // Splits the buffer by micro-batch; the parts are empty if the plan has no such buffer.
  std::vector<std::span<std::byte>> parts(BufferKey key) {
    const std::span<std::byte> whole = if_planned(key);
    const auto count = static_cast<size_t>(plan_.step.micro_batches);
    LONGSHORE_CHECK(whole.size() % count == 0)
        << plan_.device.buffer(key)->name << " is not in " << count << " equal parts";
    std::vector<std::span<std::byte>> parts;
    for (size_t i = 0; i < count; ++i) {
      parts.push_back(whole.subspan(i * (whole.size() / count), whole.size() / count));
    }
    return parts;
  }

 private:
  const TierPlan& plan_;
  DeviceMemory& memory_;
};

void check_topology(const RankGroups& groups, const TierPlan& plan) {
  LONGSHORE_CHECK(groups.topology == plan.topology) << "the plan is for other groups of ranks";
}

EngineDevice::Options device_options(const TierPlan& plan, const RankGroups& groups) {
  return {.kind = plan.device.kind,
          .gpu = groups.gpu,
          .collective = groups.shards != nullptr || groups.replicas != nullptr,
          .cap = plan.device.limit,
          .owned = plan.device.owned};
}

std::unique_ptr<NodeShards> make_node(const EngineParts& parts) {
  if (parts.plan.gather != GatherMode::kHost) return nullptr;
  LONGSHORE_CHECK(parts.tiers.shared != nullptr && parts.groups.host_shards != nullptr);
  return std::make_unique<NodeShards>(parts.tiers.shared, parts.layouts.size(),
                                      parts.groups.host_shards, parts.groups.check,
                                      parts.plan.device.kind == DeviceKind::kCuda);
}

StageRing make_ring(const TierPlan& plan, PlannedBuffers buffers) {
  std::vector<std::span<std::byte>> slots;
  for (int32_t i = 0; i < plan.device.slots; ++i) {
    // A piece of a tied head owns no parameters, so its slot has no bytes.
    slots.push_back(buffers.if_planned(DeviceSlot(i)));
  }
  return StageRing(std::move(slots));
}

UnitRunner::Memory make_runner_memory(const EngineParts& parts, PlannedBuffers buffers) {
  const TierPlan& plan = parts.plan;
  UnitRunner::Memory memory;
  memory.device = parts.device.torch();
  if (Communicator* const routers = parts.groups.routers; routers != nullptr) {
    memory.sum_over_ranks = [routers](std::span<double> pairs) {
      routers->all_reduce(pairs, {"the routers' load", std::nullopt}).wait();
    };
  }
  for (int32_t i = 0; i < plan.device.gradient_buffers; ++i) {
    memory.gradients.push_back(buffers.if_planned(GradientBuffer(i)));
  }
  SlotVector<InputSlot, std::vector<std::span<std::byte>>> input_slots;
  for (int32_t i = 0; i < plan.device.input_slots; ++i) {
    input_slots.push_back(buffers.parts(InputSlot(i)));
  }
  const SharedInputGroups runs(parts.spec(), plan.step.keeps_results);
  for (const UnitSpec& unit : parts.spec().units) {
    memory.waiting_gradients.push_back(buffers.if_planned({BufferKind::kWaitingGradient, unit.id}));
    if (unit.id.value == 0) continue;
    std::vector<std::span<std::byte>>& places = memory.carry.inputs.emplace_back();
    if (!runs.names(unit.id)) continue;
    places = input_slots.empty() ? buffers.parts({BufferKind::kInput, unit.id})
                                 : input_slots[runs.of(unit.id)->slot(plan.device.input_slots)];
  }
  memory.carry.residents = buffers.parts(BufferKind::kResidentInputs);
  memory.carry.gradients = buffers.parts(BufferKind::kOutputGradient);
  memory.carry.results = plan.step.keeps_results;
  return memory;
}

void check_routers(const EngineParts& parts) {
  LONGSHORE_CHECK(parts.model->routers().balance == 0.0 ||
                  (parts.groups.all != nullptr) == (parts.groups.routers != nullptr))
      << "the routers' load is summed by a group of its own";
}

void check_tiers(const EngineParts& parts) {
  LONGSHORE_CHECK((parts.tiers.slots != nullptr) ==
                  (parts.plan.drives.tier.state || parts.plan.frozen_in_files))
      << "state on drives and frozen parameters in files need a store with slots";
  const HostPlan& host = parts.plan.host;
  LONGSHORE_CHECK(parts.tiers.state->host_bytes() == host.arena)
      << parts.tiers.state->host_bytes() << " host bytes, planned " << host.arena;
  const Bytes inputs = parts.tiers.inputs ? parts.tiers.inputs->host_bytes() : 0;
  LONGSHORE_CHECK(inputs == host.inputs)
      << inputs << " host bytes of inputs, planned " << host.inputs;
  LONGSHORE_CHECK(parts.host_gradients.host_bytes() == host.gradients)
      << parts.host_gradients.host_bytes() << " bytes of gradients, planned " << host.gradients;
}

}  // namespace

EngineParts::EngineParts(const Options& options)
    : model(options.model),
      plan(options.plan),
      groups((check_topology(options.groups, plan), options.groups)),
      layouts(make_layouts(model->spec(), plan.topology.shard_ranks)),
      device(device_options(plan, groups), std::make_unique<CpuCopyEngine>(options.cpu_links)),
      pool(plan.optimizer_threads),
      tiers(options.make_tiers({.plan = plan,
                                .layouts = layouts,
                                .rank = groups.rank,
                                .run = options.state_key,
                                .pool = &pool,
                                .model = model->spec(),
                                .shard = groups.shard()})),
      commits(tiers.durable, groups.all),
      host_gradients(layouts, {.dtype = plan.state.drain, .ring = plan.host.gradient_ring},
                     plan.device.kind == DeviceKind::kCuda, pool),
      node(make_node(*this)),
      ring(make_ring(plan, {plan, device.memory()})),
      prefetcher({.store = tiers.state.get(),
                  .slots = tiers.slots,
                  .ring = &ring,
                  .copies = &device.copies(),
                  .shards = groups.gathers,
                  .layouts = &layouts,
                  .shard = groups.shard(),
                  .node = node.get()}),
      batches(PlannedBuffers(plan, device.memory()).if_planned(BufferKind::kBatch),
              static_cast<int32_t>(plan.step.micro_batches), plan.step.positions, &device.copies(),
              device.torch()),
      runner(model, &layouts, plan.state.compute, plan.step.kept_graphs,
             make_runner_memory(*this, {plan, device.memory()})),
      reducer(groups, &layouts, plan.reduce,
              PlannedBuffers(plan, device.memory()).if_planned(BufferKind::kReduceScratch)),
      drain(&host_gradients, &device.copies(), layouts, groups.shard(),
            PlannedBuffers(plan, device.memory()).if_planned(BufferKind::kDrainStaging),
            plan.device.kind, device.make_gradient_sums(&pool)),
      optimizer(tiers.state.get(), &host_gradients, layouts, model->spec(), groups.shard(),
                options.adamw, &pool) {
  if (tiers.inputs) inputs.emplace(tiers.inputs.get(), &device.copies());
  check_tiers(*this);
  check_routers(*this);
  device.memory().check_carved();
}

}  // namespace longshore
