// Thirty optimizer steps with the state on drives give the bits of the host tier, over formats,
// compute types, shards of 1, 2 and 4 ranks, one and three drives, parameters in memory and on
// drives, a restart in the middle, drives with transient faults, and one version instead of two.
#include <gtest/gtest.h>

#include <cstring>

#include "base/number_formats.h"
#include "base/quiet_log.h"
#include "nvme/store/nvme_store.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "pinned/pinned_store.h"
#include "shard/load_parameters.h"
#include "tests/fakes/sweep_in_order.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

constexpr AdamWOptions kAdamW = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
constexpr int64_t kSteps = 30;
constexpr int64_t kRestartAfter = 13;
constexpr int64_t kSkipped = 7;

void read_initial(const std::string& name, int64_t begin, std::span<float> out) {
  SimRandom random(name.size() * 31 + static_cast<uint64_t>(begin));
  for (float& value : out) value = static_cast<float>(random.below(2001)) * 1e-3f - 1.0f;
}

void put_gradients(HostGradients& host, size_t units, int64_t step) {
  for (size_t u = 0; u < units; ++u) {
    SimRandom random(static_cast<uint64_t>(step) * 1000 + u);
    const std::span<std::byte> bytes = host.gradient(UnitId(static_cast<int32_t>(u)));
    const auto width = static_cast<size_t>(width_of(host.dtype()));
    for (size_t i = 0; i + width <= bytes.size(); i += width) {
      const float value = static_cast<float>(random.below(2001)) * 1e-4f - 0.1f;
      const uint16_t half = float_to_bf16_nearest(value);
      std::memcpy(bytes.data() + i, width == 4 ? static_cast<const void*>(&value) : &half, width);
    }
  }
}

// Returns all bytes of a unit's state and parameters.
std::string bytes_of_unit(ShardStore& store, int32_t unit) {
  std::string all;
  const auto add = [&](auto span) {
    all.append(reinterpret_cast<const char*>(span.data()), span.size_bytes());
  };
  {
    const auto state = store.state(UnitId(unit));
    for (const Segment segment : kSegments) {
      const StateSpans spans = state->segment(segment);
      add(spans.master);
      add(spans.high);
      add(spans.low);
      add(spans.frozen);
      for (const MomentSpan& moment : spans.regions) {
        add(moment.values);
        add(moment.units);
      }
    }
  }
  add(store.parameters(UnitId(unit))->bytes());
  return all;
}

struct Setting {
  StateOptions state;
  int ranks;
  int rank;
  int drives;
  bool parameters_on_drives;
  int versions = 2;
};

void run(const Setting& setting, WorkerPool& pool) {
  const ModelSpec model = model_with_frozen();
  const std::vector<FlatLayout> layouts = make_layouts(model, setting.ranks, setting.state.compute);
  const Rank rank(setting.rank);
  SoloAgreement solo;

  PinnedStore host(layouts, setting.state, false, &pool);
  load_parameters(sweep_in_order(host, model), model, layouts, rank, read_initial);
  HostGradients gradients(layouts, {.dtype = setting.state.drain}, false, pool);
  OptimizerPipeline host_pipeline(&host, &gradients, layouts, model, rank,
                                  std::make_unique<AdamWRule>(kAdamW), &pool);

  SimDrives sim;
  for (uint64_t i = 0; i < 3; ++i) sim.injectors.push_back(harmless_faults(i, 0.1));
  NvmeStoreOptions options =
      small_store(setting.state, setting.parameters_on_drives, setting.drives);
  options.versions = setting.versions;
  std::unique_ptr<NvmeStore> store;
  std::unique_ptr<OptimizerPipeline> pipeline;
  const auto start = [&](uint64_t random) {
    pipeline.reset();
    store.reset();
    store = std::make_unique<NvmeStore>(layouts, options, sim.maker(), &pool);
    store->start(solo, random);
    pipeline = std::make_unique<OptimizerPipeline>(store.get(), &gradients, layouts, model, rank,
                                                   std::make_unique<AdamWRule>(kAdamW), &pool);
  };
  start(1);
  load_parameters(sweep_in_order(*store, model), model, layouts, rank, read_initial);
  store->commit({0, ""}, solo);
  for (int64_t step = 1; step <= kSteps; ++step) {
    if (step != kSkipped) {
      const StepUpdate update = {.update = step, .lr = 1e-3, .clip_scale = 0.7};
      put_gradients(gradients, layouts.size(), step);
      host_pipeline.stage(update);
      host_pipeline.flush();
      pipeline->stage(update);
      pipeline->flush();
    }
    store->commit({step, ""}, solo);
    if (step == kRestartAfter && setting.versions == 2) start(2);
    if (step % 10 != 3 && step != kSteps) continue;
    for (size_t u = 0; u < layouts.size(); ++u) {
      const auto unit = static_cast<int32_t>(u);
      ASSERT_TRUE(bytes_of_unit(*store, unit) == bytes_of_unit(host, unit))
          << "unit " << u << ", step " << step << ", " << name_of(setting.state.format) << " "
          << name_of(setting.state.compute) << ", rank " << setting.rank << " of " << setting.ranks
          << ", versions " << setting.versions;
    }
  }
}

// State on drives gives the bits of the host tier in every case.
TEST(OptimizerOnDrives, GivesTheBitsOfTheHostTier) {
  const QuietLog quiet;
  WorkerPool pool(2);
  for (const StateOptions& state : all_state_options()) {
    for (const int ranks : {1, 2, 4}) {
      for (const int drives : {1, 3}) {
        for (const bool on_drives : {false, true}) {
          run({state, ranks, ranks - 1, drives, on_drives}, pool);
        }
      }
    }
    for (const bool on_drives : {false, true}) run({state, 2, 0, 3, on_drives, 1}, pool);
  }
}

}  // namespace
}  // namespace longshore
