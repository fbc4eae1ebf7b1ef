#include "bench/lab/roofline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "model/decoder/head_unit.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"
#include "offload/plan/tier_plan.h"
#include "offload/staging/gradient_drain.h"

namespace longshore {
namespace roofline {
namespace {

constexpr int64_t kRow = 4096;  // tokens of a micro-batch
constexpr int64_t kVocabulary = 128'256, kHidden = 4096, kLayers = 32, kQueries = 4096;
const char* const kLlama8B =
    R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": false})";

// Rates of an H200 and its host. `best` was measured; forward and backward are guesses.
struct Rates {
  double best = 788e12, forward = 550e12, backward = 500e12;
  double memory = 4.8e12, link = 50e9, dram = 150e9;
};

// Rows in a tile of a GPU's products; a partial tile costs as much as a whole one.
constexpr int64_t kTileRows = 128;

struct RooflineStep {
  int64_t tokens = 0;
  double blocks = 0.0;     // matrix elements of all blocks
  double trainable = 0.0;  // elements of all parameters
  TierPlan plan;

  double rows() const { return static_cast<double>(tokens) / static_cast<double>(kRow); }
  // These functions count operations.
  double block_forward() const { return 2.0 * blocks * static_cast<double>(tokens); }
  double attention_forward() const {
    // Each query has two products with half of its row's keys on average.
    return 4.0 * (kRow / 2.0) * kQueries * kLayers * static_cast<double>(tokens);
  }
  // Counts forward again and gradients: of both factors of products; attention's are 5 products.
  double backward() const { return 3.0 * block_forward() + 3.5 * attention_forward(); }
  double head() const { return 6.0 * kVocabulary * kHidden * static_cast<double>(tokens); }
  // Counts bytes of GPU memory: a chunk reads the head's matrix twice and adds to its gradient.
  double head_passes(int64_t chunk) const {
    return rows() * std::ceil(static_cast<double>(kRow) / static_cast<double>(chunk)) * 12.0 *
           kVocabulary * kHidden;
  }
  // Counts operations with rows padded to whole tiles.
  double head_with_tiles(int64_t chunk) const {
    double padded = 0.0;
    for (int64_t begin = 0; begin < kRow; begin += chunk) {
      const int64_t own = std::min(chunk, kRow - begin);
      padded += static_cast<double>((own + kTileRows - 1) / kTileRows * kTileRows);
    }
    return rows() * padded * 6.0 * kVocabulary * kHidden;
  }
  // Counts bytes of a micro-batch's weight gradients, in 16 bits or not stored, added in fp32.
  double accumulation(double bytes_of_element) const { return rows() * blocks * bytes_of_element; }
  double drain_casts() const { return 8.0 * trainable; }

  double forward_seconds(double rate, const Rates& rates) const {
    return std::max({(block_forward() + attention_forward()) / rate,
                     static_cast<double>(plan.step.traffic.h2d) / 2 / rates.link,
                     static_cast<double>(plan.step.traffic.update_dram) / rates.dram});
  }
  double backward_seconds(double rate, int64_t chunk, double accumulated,
                          const Rates& rates) const {
    const double device = (backward() + head_with_tiles(chunk)) / rate +
                          (head_passes(chunk) + accumulation(accumulated)) / rates.memory;
    return std::max({device, static_cast<double>(plan.step.traffic.h2d) / 2 / rates.link,
                     static_cast<double>(plan.step.traffic.d2h) / rates.link});
  }
  double roofline(const Rates& rates) const {
    return forward_seconds(rates.best, rates) +
           std::max({(backward() + head()) / rates.best,
                     static_cast<double>(plan.step.traffic.h2d) / 2 / rates.link,
                     static_cast<double>(plan.step.traffic.d2h) / rates.link});
  }
};

// Counts do not depend on units' costs, which are 1 KiB forward, 3 KiB backward and 2 KiB saved per
// position, and twice that for the last unit.
UnitCosts roofline_costs(size_t units) {
  return [units](int64_t positions, int64_t) {
    std::vector<UnitCost> costs(units,
                                {positions * kKiB, positions * 3 * kKiB, positions * 2 * kKiB});
    costs.back() = {positions * 2 * kKiB, positions * 6 * kKiB, 0};
    return costs;
  };
}

RooflineStep step_of(const ModelSpec& spec, int64_t tokens) {
  PlanInputs inputs;
  inputs.model = &spec;
  inputs.costs = roofline_costs(spec.units.size());
  inputs.state = {
      .format = StateFormat::kSplitBf16, .compute = DType::kBF16, .drain = DType::kBF16};
  inputs.sequences_per_step = tokens / kRow;
  inputs.max_tokens = kRow;
  inputs.device = DeviceKind::kCuda;
  inputs.device_cap = 24 * kGiB;
  Machine machine;
  machine.cpu_model = "a host";
  machine.physical_cores = 4;
  machine.logical_cores = 8;
  machine.ram_total = machine.ram_available = 128 * kGiB;
  machine.gpus.resize(1);
  RooflineStep step = {.tokens = tokens, .blocks = 0.0, .trainable = 0.0, .plan = {}};
  step.plan = draft_tier_plan(inputs, machine);
  step.trainable = static_cast<double>(spec.trainable_elements());
  for (size_t i = 1; i + 1 < spec.units.size(); ++i) {
    for (const ParamSpec& parameter : spec.units[i].parameters) {
      if (parameter.shape.size() > 1) step.blocks += static_cast<double>(parameter.elements());
    }
  }
  return step;
}

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

class Page {
 public:
  explicit Page(std::vector<RooflineStep> steps) : steps_(std::move(steps)) {}
  template <typename Value>
  void line(const std::string& name, int digits, const Value& value, const std::string& unit = "") {
    std::string text = "| " + name + " |";
    for (const RooflineStep& step : steps_) text += " " + number(value(step), digits) + unit + " |";
    lines_.push_back(text);
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<RooflineStep> steps_;
  std::vector<std::string> lines_;
};

void add_counts(Page& page) {
  constexpr double kTera = 1e12, kGiga = 1e9;
  const int64_t cpu = head_chunk_positions(kVocabulary, DeviceKind::kCpu);
  const int64_t gpu = head_chunk_positions(kVocabulary, DeviceKind::kCuda);
  page.line("blocks' products, forward, TFLOP", 0,
            [](const RooflineStep& s) { return s.block_forward() / kTera; });
  page.line("attention, forward, TFLOP", 0,
            [](const RooflineStep& s) { return s.attention_forward() / kTera; });
  page.line("both, recomputed and backward, TFLOP", 0,
            [](const RooflineStep& s) { return s.backward() / kTera; });
  page.line("head, TFLOP", 0, [](const RooflineStep& s) { return s.head() / kTera; });
  for (const int64_t chunk : {cpu, gpu}) {
    const std::string rows = std::to_string(chunk) + " rows";
    page.line("head in chunks of " + rows + ": passes over matrix and gradient, GB", 0,
              [&](const RooflineStep& s) { return s.head_passes(chunk) / kGiga; });
    page.line("head in chunks of " + rows + ": products in whole tiles, TFLOP", 0,
              [&](const RooflineStep& s) { return s.head_with_tiles(chunk) / kTera; });
  }
  page.line("blocks' weight gradients, copied in 16 bits and added, GB", 0,
            [](const RooflineStep& s) { return s.accumulation(12.0) / kGiga; });
  page.line("blocks' weight gradients, added in place, GB", 0,
            [](const RooflineStep& s) { return s.accumulation(8.0) / kGiga; });
  page.line("drain: cast and copied from, GB", 0,
            [](const RooflineStep& s) { return s.drain_casts() / kGiga; });
  page.line("copied up, GB", 1, [](const RooflineStep& s) {
    return static_cast<double>(s.plan.step.traffic.h2d) / kGiga;
  });
  page.line("copied down, GB", 1, [](const RooflineStep& s) {
    return static_cast<double>(s.plan.step.traffic.d2h) / kGiga;
  });
  page.line("update, DRAM, GB", 1, [](const RooflineStep& s) {
    return static_cast<double>(s.plan.step.traffic.update_dram) / kGiga;
  });
}

void add_estimates(Page& page) {
  const Rates rates;
  const int64_t cpu = head_chunk_positions(kVocabulary, DeviceKind::kCpu);
  const int64_t gpu = head_chunk_positions(kVocabulary, DeviceKind::kCuda);
  const auto seconds = [rates](const RooflineStep& s, int64_t chunk, double bytes) {
    return s.forward_seconds(rates.forward, rates) +
           s.backward_seconds(rates.backward, chunk, bytes, rates);
  };
  page.line("roofline, s", 2, [&](const RooflineStep& s) { return s.roofline(rates); });
  page.line("head in chunks of " + std::to_string(cpu) + ", s", 2, [&](const RooflineStep& s) {
    return s.head_with_tiles(cpu) / rates.backward + s.head_passes(cpu) / rates.memory;
  });
  page.line("head in chunks of " + std::to_string(gpu) + ", s", 2, [&](const RooflineStep& s) {
    return s.head_with_tiles(gpu) / rates.backward + s.head_passes(gpu) / rates.memory;
  });
  page.line("step with the CPU's chunks, s", 2,
            [&](const RooflineStep& s) { return seconds(s, cpu, 12.0); });
  page.line("step, s", 2, [&](const RooflineStep& s) { return seconds(s, gpu, 12.0); });
  page.line("step, gradients added in place, s", 2,
            [&](const RooflineStep& s) { return seconds(s, gpu, 8.0); });
  const auto share = [&](const RooflineStep& s, int64_t chunk, double bytes) {
    return 100.0 * s.roofline(rates) / seconds(s, chunk, bytes);
  };
  page.line(
      "share of the roofline with the CPU's chunks", 0,
      [&](const RooflineStep& s) { return share(s, cpu, 12.0); }, " %");
  page.line(
      "share of the roofline", 0, [&](const RooflineStep& s) { return share(s, gpu, 12.0); }, " %");
  page.line(
      "share of the roofline, gradients added in place", 0,
      [&](const RooflineStep& s) { return share(s, gpu, 8.0); }, " %");
  page.line(
      "the same with every product at the best rate", 0,
      [&](const RooflineStep& s) {
        return 100.0 * s.roofline(rates) /
               (s.forward_seconds(rates.best, rates) +
                s.backward_seconds(rates.best, gpu, 8.0, rates));
      },
      " %");
}

std::vector<std::string> drain_lines(const ModelSpec& spec, const TierPlan& plan) {
  const GradientSums::Chunks cpu = GradientSums::chunks_on(DeviceKind::kCpu);
  const GradientSums::Chunks gpu = GradientSums::chunks_on(DeviceKind::kCuda);
  std::vector<std::string> lines;
  int64_t small = 0, large = 0, waits = 0;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      small += (parameter.elements() + cpu.elements - 1) / cpu.elements;
      large += (parameter.elements() + gpu.elements - 1) / gpu.elements;
      waits += 1;
    }
  }
  lines.push_back("| drain | copies | host waits | staging |");
  lines.push_back("| one buffer of 2 MiB, a wait for each parameter | " + std::to_string(small) +
                  " | " + std::to_string(waits) + " | 2 MiB |");
  lines.push_back("| two buffers of 16 MiB, a wait for each unit | " + std::to_string(large) +
                  " | " + std::to_string(spec.units.size()) + " | " +
                  format_bytes(plan.device.buffer(BufferKind::kDrainStaging)->bytes) + " |");
  return lines;
}

}  // namespace
}  // namespace roofline

int run_lab_roofline() {
  using namespace roofline;
  const ArchSpec arch = read_arch_spec(Json::parse(kLlama8B), "config.json");
  const ModelSpec spec = make_model_spec(arch, {});
  LONGSHORE_CHECK(arch.vocabulary == kVocabulary) << arch.vocabulary;
  std::vector<RooflineStep> steps;
  for (const int64_t tokens : {8192, 16'384, 32'768}) steps.push_back(step_of(spec, tokens));
  Page page(steps);
  add_counts(page);
  add_estimates(page);
  std::vector<std::string> lines = page.lines();
  for (const std::string& line : drain_lines(spec, steps[0].plan)) lines.push_back(line);
  for (const std::string& line : lines) print_out("%s\n", line.c_str());
  return 0;
}

}  // namespace longshore
