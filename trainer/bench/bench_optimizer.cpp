#include "trainer/bench/bench_optimizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/errors.h"
#include "base/number_formats.h"
#include "base/philox.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/optimizer/stream_bound.h"
#include "offload/optimizer/update_traffic.h"
#include "offload/plan/machine.h"
#include "pinned/pinned_store.h"

namespace longshore {
namespace {

// Both passes run in pieces of this size, which the update's tiles have too.
constexpr int64_t kTileElements = int64_t{1} << 15;
constexpr int64_t kRowElements = 4096;
constexpr int64_t kMostElements = int64_t{1} << 36;

double median_of(std::vector<double> values, double quantile) {
  const auto at = static_cast<size_t>(quantile * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(at), values.end());
  return values[at];
}

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A rule that only moves what the update moves.
class MoveRule final : public UpdateRule {
 public:
  int32_t group_of(const ParamSpec&) const override { return 0; }
  void stage(const StepUpdate&) override {}
  void apply(int32_t, const UpdateSlice& slice) const override { move_streams(slice); }
};

// One matrix on the host tier, with state and gradients that make ordinary updates.
class Bench {
 public:
  Bench(StateFormat format, int threads, int64_t elements)
      : options_{format, DType::kBF16, DType::kBF16},
        model_(one_matrix(elements)),
        layouts_(make_layouts(model_, 1)),
        pool_(threads),
        store_(layouts_, options_, false, &pool_),
        gradients_(layouts_, {.dtype = options_.drain}, false, pool_),
        update_(&store_, &gradients_, layouts_, model_, Rank(0), AdamWOptions{}, &pool_),
        move_(&store_, &gradients_, layouts_, model_, Rank(0), std::make_unique<MoveRule>(), 0,
              &pool_) {
    fill();
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
    move_.stage({.update = updates_ + 1});
    return seconds_of([&] { move_.flush(); });
  }

 private:
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
  GradientHome gradients_;
  OptimizerPipeline update_;
  OptimizerPipeline move_;
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

OptimizerFigures measure(StateFormat format, int threads, const BenchOptimizerOptions& options) {
  Bench bench(format, threads, options.elements);
  bench.move_seconds();  // the first passes fill caches and page tables
  bench.update_seconds();
  std::vector<double> updates;
  std::vector<double> moves;
  std::vector<double> shares;
  for (int64_t round = 0; round < options.rounds; ++round) {
    // In turn, so that a drift of the machine meets both.
    moves.push_back(bench.move_seconds());
    updates.push_back(bench.update_seconds());
    shares.push_back(moves.back() / updates.back());
  }
  const auto elements = static_cast<double>(bench.elements());
  const auto bytes = static_cast<double>(bench.traffic());
  OptimizerFigures figures;
  figures.format = format;
  figures.threads = threads;
  figures.bytes_per_parameter = bytes / elements;
  figures.parameters_per_second = elements / median_of(updates, 0.5);
  figures.bytes_per_second = bytes / median_of(updates, 0.5);
  figures.bound_bytes_per_second = bytes / median_of(moves, 0.5);
  figures.share = median_of(shares, 0.5);
  figures.share_low = median_of(shares, 0.25);
  figures.share_high = median_of(shares, 0.75);
  return figures;
}

std::vector<StateFormat> formats_of(const std::vector<std::string>& names) {
  if (names.empty()) return {kStateFormats.begin(), kStateFormats.end()};
  std::vector<StateFormat> formats;
  for (const std::string& name : names) {
    const std::optional<StateFormat> format = parse_state_format(name);
    if (!format) {
      throw ConfigError("--format: '" + name +
                        "' is none of fp32, split, split-bf16 and split-int8");
    }
    formats.push_back(*format);
  }
  return formats;
}

std::vector<int> threads_of(const std::vector<int>& wanted) {
  if (!wanted.empty()) return wanted;
  const int cores = probe_machine().physical_cores;
  std::vector<int> counts;
  for (int count = 1; count < cores; count *= 2) counts.push_back(count);
  counts.push_back(cores);
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
  std::vector<OptimizerFigures> all;
  for (const StateFormat format : formats_of(options.formats)) {
    for (const int threads : threads_of(options.threads)) {
      if (threads < 1 || threads > 1024) throw ConfigError("--threads: from 1 to 1024");
      all.push_back(measure(format, threads, options));
    }
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
                     {"simd", name_of(machine.simd)},
                     {"rounds", options.rounds},
                     {"parameters", options.elements},
                     {"figures", array}};
  std::printf("%s\n", json.dump(2).c_str());
  return 0;
}

}  // namespace longshore
