#include "trainer/bench/bench_optimizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/errors.h"
#include "base/measurement.h"
#include "base/number_formats.h"
#include "base/random.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/optimizer/stream_bound.h"
#include "offload/plan/machine.h"
#include "pinned/pinned_store.h"

namespace longshore {
namespace {

// Both passes use pieces of this size, which is also the tile size of the update.
constexpr int64_t kTileElements = int64_t{1} << 15;
constexpr int64_t kRowElements = 4096;
constexpr int64_t kMostElements = int64_t{1} << 36;

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return seconds_since(start);
}

// MoveRule moves the same bytes as the update without computing.
class MoveRule final : public UpdateRule {
 public:
  explicit MoveRule(MoveLoop loop) : loop_(loop) {}
  std::span<const StateRegion> regions() const override { return kAdamWRegions; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  void stage(const StepUpdate&) override {}
  void apply(int32_t, const UpdateSlice& slice) const override { move_streams(slice, loop_); }

 private:
  MoveLoop loop_;
};

// AdamWAtLevel runs AdamW with the instructions of one SIMD level.
class AdamWAtLevel final : public UpdateRule {
 public:
  explicit AdamWAtLevel(SimdLevel level) : level_(level) {}
  std::span<const StateRegion> regions() const override { return kAdamWRegions; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  void stage(const StepUpdate& update) override {
    scalars_ = make_adamw_scalars({}, update.update, update.lr, update.clip_scale, true);
  }
  void apply(int32_t, const UpdateSlice& slice) const override {
    adamw_step_at(level_, slice, scalars_);
  }

 private:
  SimdLevel level_;
  AdamWScalars scalars_;
};

// Bench holds one matrix on the host tier, with state and gradients of ordinary updates.
class Bench {
 public:
  Bench(StateFormat format, int threads, int64_t elements, SimdLevel level)
      : options_{format, DType::kBF16, DType::kBF16},
        model_(one_matrix(elements)),
        layouts_(make_layouts(model_, 1, options_.compute)),
        pool_(threads),
        store_(layouts_, options_, false, &pool_),
        gradients_(layouts_, {.dtype = options_.drain}, false, pool_),
        update_(&store_, &gradients_, layouts_, model_, Rank(0),
                std::make_unique<AdamWAtLevel>(level), &pool_) {
    fill();
    choose_move();
    update_seconds();  // the first pass fills caches and page tables
  }

  int64_t elements() const { return model_.trainable_elements(); }
  Bytes traffic() const {
    return update_traffic(options_, Segment::kQuantisedMoments, elements()).total();
  }
  double update_seconds() {
    update_.stage({.update = ++updates_, .lr = 1e-5, .clip_scale = 1.0});
    return seconds_of([&] { update_.flush(); });
  }
  double move_seconds() {
    move_->stage({.update = updates_ + 1});
    return seconds_of([&] { move_->flush(); });
  }

 private:
  // Selects the fastest move loop as the memory bound.
  void choose_move() {
    std::unique_ptr<OptimizerPipeline> fastest;
    double least = 0.0;
    for (const MoveLoop loop : kMoveLoops) {
      move_ = std::make_unique<OptimizerPipeline>(&store_, &gradients_, layouts_, model_, Rank(0),
                                                  std::make_unique<MoveRule>(loop), &pool_);
      std::vector<double> seconds;
      for (int round = 0; round < 5; ++round) seconds.push_back(move_seconds());
      const double median = median_of(seconds);
      if (fastest != nullptr && median >= least) continue;
      least = median;
      fastest = std::move(move_);
    }
    move_ = std::move(fastest);
  }

  static ModelSpec one_matrix(int64_t elements) {
    ParamSpec matrix;
    matrix.name = "matrix";
    matrix.shape = {std::max<int64_t>(1, elements / kRowElements), kRowElements};
    ModelSpec model;
    model.units.emplace_back();
    model.units.front().parameters = {matrix};
    return model;
  }

  void fill() {
    const auto state = store_.state(UnitId(0));
    const StateSpans spans = state->segment(Segment::kQuantisedMoments);
    auto* gradient = reinterpret_cast<uint16_t*>(gradients_.gradient(UnitId(0)).data());
    pool_.for_each_block((elements() + kTileElements - 1) / kTileElements, [&](int64_t tile) {
      const int64_t begin = tile * kTileElements;
      std::vector<float> values;
      for (int64_t i = begin; i < std::min(begin + kTileElements, elements()); ++i) {
        const uint32_t bits =
            philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0}, {1, 2})[0];
        values.push_back((static_cast<float>(bits >> 8) / 8388608.0f - 1.0f) * 0.02f);
        gradient[i] = float_to_bf16_nearest(values.back() * 0.01f);
      }
      write_matrix(spans, begin, values);
    });
  }
  static void write_matrix(const StateSpans& spans, int64_t begin, std::span<const float> values);

  StateOptions options_;
  ModelSpec model_;
  std::vector<FlatLayout> layouts_;
  WorkerPool pool_;
  PinnedStore store_;
  HostGradients gradients_;
  OptimizerPipeline update_;
  std::unique_ptr<OptimizerPipeline> move_;
  int64_t updates_ = 0;
};

void Bench::write_matrix(const StateSpans& spans, int64_t begin, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = static_cast<size_t>(begin) + i;
    if (!spans.master.empty()) spans.master[at] = values[i];
    if (!spans.high.empty()) spans.high[at] = master_high(values[i]);
    if (!spans.low.empty()) spans.low[at] = master_low(values[i]);
  }
}

struct Times {
  std::vector<double> updates, moves, shares;
};

OptimizerFigures figures_of(StateFormat format, int threads, const Bench& bench,
                            const Times& times) {
  const auto elements = static_cast<double>(bench.elements());
  const auto bytes = static_cast<double>(bench.traffic());
  OptimizerFigures figures;
  figures.format = format;
  figures.threads = threads;
  figures.bytes_per_parameter = bytes / elements;
  figures.parameters_per_second = elements / median_of(times.updates);
  figures.bytes_per_second = bytes / median_of(times.updates);
  figures.bound_bytes_per_second = bytes / median_of(times.moves);
  figures.share = median_of(times.shares);
  figures.share_low = quantile_of(times.shares, 0.25);
  figures.share_high = quantile_of(times.shares, 0.75);
  return figures;
}

SimdLevel level_of(const std::string& name) {
  if (name.empty()) return best_simd_level();
  std::string known;
  for (const SimdLevel level : kSimdLevels) {
    if (!cpu_has(level)) continue;
    if (name_of(level) == name) return level;
    known += (known.empty() ? "" : ", ") + std::string(name_of(level));
  }
  throw ConfigError("--simd: '" + name + "' is not supported by this CPU, which has " + known);
}

// Alternates bounds, updates and formats, so that a drift of the machine affects all equally.
std::vector<OptimizerFigures> measure(const std::vector<StateFormat>& formats, int threads,
                                      const BenchOptimizerOptions& options) {
  std::vector<std::unique_ptr<Bench>> benches;
  for (const StateFormat format : formats) {
    benches.push_back(
        std::make_unique<Bench>(format, threads, options.elements, level_of(options.simd)));
  }
  std::vector<Times> times(formats.size());
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < formats.size(); ++i) {
      times[i].moves.push_back(benches[i]->move_seconds());
      times[i].updates.push_back(benches[i]->update_seconds());
      times[i].shares.push_back(times[i].moves.back() / times[i].updates.back());
    }
  }
  std::vector<OptimizerFigures> figures;
  for (size_t i = 0; i < formats.size(); ++i) {
    figures.push_back(figures_of(formats[i], threads, *benches[i], times[i]));
  }
  return figures;
}

std::vector<StateFormat> formats_of(const std::vector<std::string>& names) {
  std::vector<StateFormat> formats;
  if (names.empty()) {
    for (const StateFormatTraits& traits : kStateFormats) formats.push_back(traits.format);
  }
  for (const std::string& name : names) {
    const std::optional<StateFormat> format = parse_state_format(name);
    if (!format) {
      throw ConfigError("--format: '" + name +
                        "' is not a state format: expected fp32, split, split-bf16 or split-int8");
    }
    formats.push_back(*format);
  }
  return formats;
}

std::vector<int> threads_of(const std::vector<int>& wanted) {
  if (!wanted.empty()) return wanted;
  const Machine machine = probe_machine();
  const int cores = machine.physical_cores;
  std::vector<int> counts;
  for (int count = 1; count < cores; count *= 2) counts.push_back(count);
  counts.push_back(cores);
  if (machine.logical_cores > cores) counts.push_back(machine.logical_cores);
  return counts;
}

Json to_json(const OptimizerFigures& figures) {
  return {{"format", name_of(figures.format)},
          {"threads", figures.threads},
          {"bytes_per_parameter", figures.bytes_per_parameter},
          {"parameters_per_second", figures.parameters_per_second},
          {"bytes_per_second", figures.bytes_per_second},
          {"bound_bytes_per_second", figures.bound_bytes_per_second},
          {"share_of_bound", figures.share},
          {"share_quartiles", {figures.share_low, figures.share_high}}};
}

void print_table(const std::vector<OptimizerFigures>& all) {
  std::printf("%-11s %7s %11s %9s %8s %11s %s\n", "format", "threads", "bytes/param", "Gparam/s",
              "GB/s", "bound GB/s", "share of the bound (quartiles)");
  for (const OptimizerFigures& figures : all) {
    std::printf("%-11s %7d %11.2f %9.3f %8.1f %11.1f %.3f (%.3f to %.3f)\n",
                std::string(name_of(figures.format)).c_str(), figures.threads,
                figures.bytes_per_parameter, figures.parameters_per_second * 1e-9,
                figures.bytes_per_second * 1e-9, figures.bound_bytes_per_second * 1e-9,
                figures.share, figures.share_low, figures.share_high);
  }
}

}  // namespace

std::vector<OptimizerFigures> measure_optimizer(const BenchOptimizerOptions& options) {
  const bool sane =
      options.rounds >= 1 && options.elements >= kRowElements && options.elements <= kMostElements;
  if (!sane) {
    throw ConfigError("--rounds is at least 1, and --parameters from " +
                      std::to_string(kRowElements) + " to " + std::to_string(kMostElements));
  }
  const std::vector<StateFormat> formats = formats_of(options.formats);
  std::vector<OptimizerFigures> all;
  for (const int threads : threads_of(options.threads)) {
    if (threads < 1 || threads > 1024) throw ConfigError("--threads: from 1 to 1024");
    const std::vector<OptimizerFigures> figures = measure(formats, threads, options);
    all.insert(all.end(), figures.begin(), figures.end());
  }
  return all;
}

int run_bench_optimizer(const BenchOptimizerOptions& options) {
  const std::vector<OptimizerFigures> all = measure_optimizer(options);
  if (!options.json) {
    print_table(all);
    return 0;
  }
  const Machine machine = probe_machine();
  Json array = Json::array();
  for (const OptimizerFigures& figures : all) array.push_back(to_json(figures));
  const Json json = {{"cpu", machine.cpu_model},
                     {"simd", name_of(level_of(options.simd))},
                     {"rounds", options.rounds},
                     {"parameters", options.elements},
                     {"figures", array}};
  std::printf("%s\n", json.dump(2).c_str());
  return 0;
}

}  // namespace longshore
