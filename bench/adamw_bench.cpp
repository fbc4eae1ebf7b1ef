// The update of a large slab on the host tier: bytes per second by state format and threads. The
// bound is the memory's bandwidth; see offload/update_traffic.h for the bytes.
#include <benchmark/benchmark.h>

#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/optimizer/update_traffic.h"
#include "pinned/pinned_store.h"

namespace longshore {
namespace {

constexpr int64_t kSide = 4096;

void update_unit(benchmark::State& state) {
  const auto format = static_cast<StateFormat>(state.range(0));
  const StateOptions options = {format, DType::kBF16, DType::kBF16};
  ModelSpec model;
  model.units.emplace_back();
  ParamSpec matrix;
  matrix.name = "matrix";
  matrix.shape = {kSide, kSide};
  model.units.front().parameters = {matrix};
  const std::vector<FlatLayout> layouts = make_layouts(model, 1);
  WorkerPool pool(static_cast<int>(state.range(1)));
  PinnedStore store(layouts, options, false, &pool);
  GradientHome gradients(layouts, {.dtype = options.drain}, false, pool);
  OptimizerPipeline pipeline(&store, &gradients, layouts, model, Rank(0), AdamWOptions{}, &pool);
  int64_t update = 0;
  for (auto _ : state) {
    pipeline.stage({.update = ++update, .lr = 1e-5, .clip_scale = 1.0});
    pipeline.flush();
  }
  state.SetItemsProcessed(state.iterations() * kSide * kSide);
  const Bytes traffic = update_traffic(options, Segment::kQuantisedMoments, kSide * kSide).total();
  state.SetBytesProcessed(state.iterations() * traffic);
}

BENCHMARK(update_unit)
    ->ArgNames({"format", "threads"})
    ->ArgsProduct({{0, 1}, {1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace longshore
