// Computation is measured on a decoder unit that runs as in the engine: matrix products with all
// other operations, forward, forward again for the graph, and backward.
#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/measurement.h"
#include "model/families/families.h"
#include "model/models/decoder_model.h"
#include "model/parameters/adapter.h"
#include "model/parameters/model_spec.h"
#include "offload/engine/probe/unit_probe.h"
#include "trainer/device/run_environment.h"
#include "trainer/machine/measure_rates.h"
#include "trainer/setup/run_flops.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHeadDim = 64;
constexpr int64_t kVocabulary = 256;
constexpr double kIntermediate = 2.75;
constexpr size_t kMostRuns = 500;
// Passes of a probe run: two forward passes, and the gradients of inputs and weights.
constexpr double kProductPasses = 4.0;
constexpr double kAttentionPasses = 4.5;
// A difference of two times is at least this share of the longer one, so that noise makes no rate.
constexpr double kLeastShare = 0.02;
constexpr int64_t kRank = 16;  // of measured adapters
// A second micro-batch size, far enough from 1 that noise does not dominate the fitted line.
constexpr int64_t kMoreSequences = 4;
constexpr int64_t kShortDocument = 64, kLongDocument = 2048;

ArchSpec block_of(int64_t hidden) {
  const Json config = {
      {"model_type", "llama"},
      {"vocab_size", kVocabulary},
      {"hidden_size", hidden},
      {"intermediate_size", static_cast<int64_t>(kIntermediate * static_cast<double>(hidden))},
      {"num_hidden_layers", 1},
      {"num_attention_heads", hidden / kHeadDim},
      {"head_dim", kHeadDim},
      {"max_position_embeddings", kLongDocument}};
  return read_arch_spec(config, "a measurement");
}

// Returns the median run time without the first run. It measures at least three runs, but stops
// after ten times `seconds`, possibly with a single run.
double probe_seconds(const OneUnitModel& model, const ProbeDevice& device, int64_t positions,
                     int64_t document, double seconds) {
  UnitProbe probe(&model, device, positions);
  const ProbeInput input{.positions = positions, .document = document, .trained = positions};
  std::vector<double> taken;
  const Clock::time_point begin = Clock::now();
  const auto spent = [&] { return seconds_since(begin); };
  while (taken.size() < 3 || (spent() < seconds && taken.size() < kMostRuns)) {
    const double before = spent();
    probe.run(input);
    taken.push_back(spent() - before);
    if (spent() > 10.0 * seconds) break;
  }
  if (taken.size() > 1) taken.erase(taken.begin());
  return median_of(taken);
}

struct Measured {
  double seconds = 0.0;  // per position
  UnitFlops flops;
};

// The block to measure. With `adapters`, the targets of adapters, it is frozen; otherwise it is
// trained. The gradient of its input is computed in both cases.
struct Block {
  int64_t hidden = 0;
  int64_t positions = 0;
  int64_t document = 0;
  std::string adapters = {};
};

Measured measure_block(DeviceKind device, DType dtype, const Block& measured, double seconds) {
  ArchSpec arch = block_of(measured.hidden);
  UnitId block(1);
  if (!measured.adapters.empty()) {
    // The block below has adapters too, so that gradients flow to it.
    arch.layers.push_back(arch.layers.front());
    block = UnitId(2);
    arch.adapter =
        choose_adapters(arch, {.rank = kRank, .targets = {measured.adapters}}, "a measurement");
  }
  ModelSpec spec = make_model_spec(arch, {});
  if (!measured.adapters.empty()) freeze_base(spec, {}, "a measurement");
  const DecoderModel model(arch, std::move(spec));
  const OneUnitModel one(model, block);
  const double taken = probe_seconds(one, {.kind = device, .compute = dtype}, measured.positions,
                                     measured.document, seconds);
  return {taken / static_cast<double>(measured.positions),
          flops_of_unit(model, block, measured.document)};
}

// Returns the bytes per second of products with adapters: those that adapters on all matrices move
// beyond those of attention alone, over the time that they take more.
double measure_adapters(DeviceKind device, DType dtype, int64_t positions, double seconds) {
  const int64_t hidden = device == DeviceKind::kCuda ? 4096 : 512;
  const auto with = [&](const std::string& targets) {
    return measure_block(device, dtype, {hidden, positions, kShortDocument, targets}, seconds);
  };
  // A probe run is forward, forward again and backward.
  const auto elements = [](const UnitFlops& flops) {
    return 2.0 * adapter_elements(flops, false) + adapter_elements(flops, true);
  };
  const Measured some = with("attention"), all = with("all-linear");
  const double more = std::max(all.seconds - some.seconds, kLeastShare * all.seconds);
  return (elements(all.flops) - elements(some.flops)) * static_cast<double>(width_of(dtype)) / more;
}

}  // namespace

ComputeRates measure_compute(DeviceKind device, DType dtype, double seconds) {
  const bool gpu = device == DeviceKind::kCuda;
  const bool hurried = seconds < 0.1;
  const std::vector<int64_t> widths = gpu ? std::vector<int64_t>{1024, 2048, 4096, 8192}
                                          : std::vector<int64_t>{128, 512, 1024, 2048};
  const int64_t positions = gpu ? 4096 : hurried ? 64 : 512;
  ComputeRates rates{device, dtype, {}, 0.0};
  for (const int64_t hidden : widths) {
    // The last width predicts the time of the next, which has at least 4 times the operations.
    if (!rates.products.empty()) {
      const double next = 16.0 * rates.products.back().width * rates.products.back().width *
                          kProductPasses * 14.0 * static_cast<double>(positions);
      if (next / rates.products.back().flops > (hurried ? 0.05 : 6.0)) break;
    }
    const Measured block =
        measure_block(device, dtype, {hidden, positions, kShortDocument}, seconds);
    const double passes = kProductPasses * block.flops.products;
    rates.products.push_back({block.flops.width, passes / block.seconds});
  }
  // The extra time of long documents over short ones is attention.
  const int64_t hidden = gpu ? 2048 : 256;
  const int64_t document = hurried ? 256 : kLongDocument;
  const Measured shorter =
      measure_block(device, dtype, {hidden, document, kShortDocument}, seconds);
  const Measured longer = measure_block(device, dtype, {hidden, document, document}, seconds);
  const double more = std::max(longer.seconds - shorter.seconds, kLeastShare * longer.seconds);
  rates.attention = kAttentionPasses * (longer.flops.attention - shorter.flops.attention) / more;
  rates.adapters = measure_adapters(device, dtype, positions, seconds);
  return rates;
}

std::vector<int64_t> measured_micro_batches(const PlanInputs& inputs, const Machine& machine) {
  const int64_t own = inputs.micro_batch;
  if (own > 1) return {1, own};
  const int64_t ranks = inputs.topology.ranks;
  const int64_t of_rank = (inputs.sequences_per_step + ranks - 1) / ranks;
  for (int64_t more = std::min(kMoreSequences, of_rank); more > own; --more) {
    PlanInputs larger = inputs;
    larger.micro_batch = more;
    if (draft_tier_plan(larger, machine).fits()) return {own, more};
  }
  return {own};
}

int measure_units(const MeasuredRun& setup, const KnownRates& known, double seconds) {
  const Model& model = setup.source->model();
  const PlanInputs& inputs = setup.inputs;
  const int64_t document = inputs.max_tokens;
  const ProbeDevice device{.kind = inputs.device, .compute = inputs.state.compute};
  const std::vector<int64_t> micro_batches = measured_micro_batches(inputs, setup.machine);
  std::set<std::string> done;
  for (const UnitSpec& unit : model.spec().units) {
    const std::string text = text_of_unit(setup, unit.id);
    if (!done.insert(text).second) continue;
    const OneUnitModel one(model, unit.id);
    std::vector<UnitPoint> points;
    for (const int64_t sequences : micro_batches) {
      const int64_t positions = sequences * document;
      const double taken = probe_seconds(one, device, positions, document, seconds);
      points.push_back({positions, split_of_probe(one, taken / static_cast<double>(positions))});
    }
    known.keep_unit(text, points);
  }
  return static_cast<int>(done.size());
}

}  // namespace longshore
