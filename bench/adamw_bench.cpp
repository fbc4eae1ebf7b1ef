// adamw_bench: CPU time per element of the update of a tile in the L2 cache, at every SIMD level of
// this CPU and in every state format. It measures instructions; `longshore bench optimizer`
// measures memory. Use the minimum of many repetitions in random order, because other load only
// adds time.
#include <benchmark/benchmark.h>

#include "tests/offload/adamw_slices.h"

namespace longshore {
namespace {

constexpr size_t kTileElements = 8192;

void update_tile(benchmark::State& state, SimdLevel level, fakes::Form form) {
  std::vector<float> values = fakes::random_values(kTileElements, 1);
  for (float& value : values) value = std::isnormal(value) ? value * 0.02f : 0.02f;
  fakes::AdamWState tile(form, DType::kBF16, values);
  tile.set_gradient(values);
  const AdamWScalars scalars = make_adamw_scalars({.weight_decay = 0.1}, 10, 1e-5, 1.0, true);
  for (auto _ : state) {
    ++tile.update;
    adamw_step_at(level, tile.slice(), scalars);
  }
  state.counters["ns_per_element"] = benchmark::Counter(
      static_cast<double>(kTileElements) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

void register_all() {
  constexpr std::pair<fakes::Form, std::string_view> kFormats[] = {
      {fakes::Form::kMasterAndParameter, "fp32"},
      {fakes::Form::kSplit, "split"},
      {fakes::Form::kSplitBf16, "split-bf16"},
      {fakes::Form::kSplitInt8, "split-int8"}};
  for (const SimdLevel level : kSimdLevels) {
    if (level == SimdLevel::kBaseline || !cpu_has(level)) continue;
    for (const auto& [form, name] : kFormats) {
      const std::string title = std::string(name_of(level)) + "/" + std::string(name);
      benchmark::RegisterBenchmark(title.c_str(), update_tile, level, form)
          ->ComputeStatistics("least", least);
    }
  }
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  longshore::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
