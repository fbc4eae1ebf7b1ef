// The planned bytes of LibTorch's temporaries against those that the engine's runner takes, over
// random models, micro-batches and splits into documents.
#include "offload/engine/probe/measured_workspace.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <future>
#include <iostream>
#include <random>

#include "base/json.h"
#include "base/processor.h"
#include "device/compute_threads.h"
#include "device/gpu_tensors.h"
#include "model/decoder/head_unit.h"
#include "model/families/families.h"
#include "model/models/decoder_model.h"
#include "model/models/module_model.h"
#include "model/parameters/model_spec.h"
#include "offload/plan/machine.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

// Case: one random model and micro-batch.
struct Case {
  Json config;
  DType compute = DType::kF32;
  int threads = 1;
  MicroBatchShape run;
  std::vector<std::string> freeze;
  uint64_t seed = 0;

  std::string text() const {
    return config.dump() + (compute == DType::kF32 ? " fp32 " : " bf16 ") +
           std::to_string(run.positions) + " positions, documents up to " +
           std::to_string(run.longest_document) + ", " + std::to_string(threads) + " threads, " +
           (freeze.empty() ? "all trained" : freeze.front() + " frozen");
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : generator_(seed) {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(generator_() % static_cast<uint64_t>(most - least + 1));
  }
  // Returns a random size, with equal chance for each order of magnitude.
  int64_t sized(int64_t least, int64_t most) {
    const double share = static_cast<double>(generator_() >> 11) * 0x1p-53;
    const double ratio = static_cast<double>(most) / static_cast<double>(least);
    return std::llround(static_cast<double>(least) * std::pow(ratio, share));
  }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(between(0, std::ssize(list) - 1))];
  }

 private:
  std::mt19937_64 generator_;
};

void draw_gemma4(Draw& draw, int64_t head_dim, Json& config) {
  config["hidden_size_per_layer_input"] = draw.one_of<int64_t>({0, 0, 64});
  config["vocab_size_per_layer_input"] = config["vocab_size"];
  config["layer_types"] = {"full_attention"};
  config["global_head_dim"] = 2 * head_dim;
  config["attention_k_eq_v"] = draw.between(0, 1) == 1;
  if (draw.between(0, 1) == 0) return;
  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"full_attention", "full_attention"};
  config["num_kv_shared_layers"] = 1;
}

// Returns a random config.json with `hidden` up to 4096, in the family's own names.
Json draw_config(Draw& draw) {
  const auto family = draw.one_of<std::string>(
      {"llama",        "mistral",     "qwen2",    "qwen3",   "gpt2",
       "gemma2",       "gemma3_text", "phi3",     "olmo2",   "olmo3",
       "smollm3",      "granite",     "seed_oss", "glm4",    "hunyuan_v1_dense",
       "qwen3_5_text", "gemma4_text", "exaone4",  "cohere2", "lfm2",
       "nemotron_h"});
  const int64_t head_dim = draw.one_of<int64_t>({16, 32, 64, 128});
  const int64_t heads = std::max<int64_t>(1, draw.sized(64, 4096) / head_dim);
  const int64_t hidden = heads * head_dim;
  const int64_t vocabulary = draw.sized(256, 32768);
  if (family == "gpt2") {
    return {{"model_type", family}, {"vocab_size", vocabulary}, {"n_embd", hidden},
            {"n_layer", 1},         {"n_head", heads},          {"n_positions", 4096}};
  }
  std::vector<int64_t> groups;
  for (int64_t kv_heads = 1; kv_heads <= heads; ++kv_heads) {
    if (heads % kv_heads == 0) groups.push_back(kv_heads);
  }
  Json config = {{"model_type", family},
                 {"vocab_size", vocabulary},
                 {"hidden_size", hidden},
                 {"intermediate_size", std::max<int64_t>(16, hidden * draw.between(1, 16) / 4)},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", draw.one_of(groups)},
                 {"tie_word_embeddings", draw.between(0, 1) == 1}};
  if (family != "phi3") config["head_dim"] = head_dim;
  if (family == "mistral" || family.starts_with("gemma") || family == "olmo3" ||
      family == "exaone4" || family == "cohere2") {
    config["sliding_window"] = draw.sized(2, 2048);
  }
  if (family == "qwen3_5_text") {
    config["linear_num_key_heads"] = config["num_key_value_heads"];
    config["linear_num_value_heads"] = heads;
    config["linear_key_head_dim"] = config["linear_value_head_dim"] = head_dim;
  }
  if (family == "gemma4_text") draw_gemma4(draw, head_dim, config);
  if (family == "lfm2") {
    config["head_dim"] = nullptr;
    config["layer_types"] = {draw.between(0, 3) > 0 ? "conv" : "full_attention"};
    config["block_auto_adjust_ff_dim"] = false;
    config["conv_bias"] = draw.between(0, 1) == 1;
  }
  if (family == "nemotron_h") {
    config["hybrid_override_pattern"] = draw.one_of<std::string>({"M", "M", "*", "-"});
    config["tie_word_embeddings"] = false;
    config["mamba_num_heads"] = heads;
    config["mamba_head_dim"] = head_dim;
    config["n_groups"] = config["num_key_value_heads"];
    config["ssm_state_size"] = draw.one_of<int64_t>({16, 64, 128});
  }
  if (family == "granite") config["residual_multiplier"] = config["logits_scaling"] = 0.5;
  if (family == "phi3" && draw.between(0, 1) == 1) {
    const std::vector<double> factors(static_cast<size_t>(head_dim / 2), 1.5);
    config["original_max_position_embeddings"] = draw.sized(2, 2048);
    config["rope_scaling"] = {
        {"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
  }
  return config;
}

std::unique_ptr<DecoderModel> make_model(const Case& one) {
  const ArchSpec arch = read_arch_spec(one.config, "config.json");
  ModelSpec spec = make_model_spec(arch, {});
  freeze_parameters(spec, one.freeze, "test");
  return std::make_unique<DecoderModel>(arch, spec);
}

// Estimates the seconds of a run of all units on the case's micro-batch.
double seconds_of(const Case& one) {
  const auto model = make_model(one);
  const bool fast = one.compute == DType::kF32 || cpu_has_avx512();
  double seconds = 0.0;
  for (const UnitSpec& unit : model->spec().units) {
    const UnitWork work = unit_work(*model, unit.id, one.run.longest_document, DeviceKind::kCpu);
    seconds += probe_seconds(work,
                             {.positions = one.run.positions,
                              .document = one.run.longest_document,
                              .trained = one.run.positions},
                             (fast ? 2.5e10 : 2.5e9) * one.threads);
  }
  return seconds;
}

// Returns the case of a seed; its units run in about `most_seconds` or less.
Case draw_case(uint64_t seed, double most_seconds) {
  Draw draw(seed);
  while (true) {
    Case one;
    one.seed = seed;
    one.config = draw_config(draw);
    one.compute = draw.between(0, 1) == 0 ? DType::kF32 : DType::kBF16;
    one.threads = static_cast<int>(draw.between(1, 2));
    one.run.positions = draw.sized(1, 4096);
    one.run.longest_document =
        draw.between(0, 2) > 0 ? one.run.positions : draw.sized(1, one.run.positions);
    const std::string family = one.config.at("model_type");
    const bool own_names = family == "lfm2" || family == "nemotron_h";
    if (draw.between(0, 7) == 0) {
      one.freeze = {draw.one_of<std::string>(own_names
                                                 ? std::vector<std::string>{"*norm*"}
                                                 : std::vector<std::string>{"*mlp*", "*attn*"})};
    }
    if (seconds_of(one) <= most_seconds) return one;
  }
}

// Splits the positions into documents of length `longest`, or of random lengths up to it.
std::vector<int64_t> draw_documents(Draw& draw, const MicroBatchShape& shape) {
  std::vector<int64_t> documents;
  const int64_t around =
      draw.between(0, 2) == 0 ? shape.longest_document : draw.sized(1, shape.longest_document);
  const bool equal = draw.between(0, 1) == 0;
  for (int64_t left = shape.positions; left > 0;) {
    const int64_t length = std::min(left, equal ? around : draw.between(1, around));
    documents.push_back(length);
    left -= length;
  }
  return documents;
}

Bytes most_of(const ProbeTrace& trace) {
  Bytes most = trace.forward;
  for (const Bytes phase : trace.backward) most = std::max(most, phase);
  return most;
}

// Checks that measured <= planned for every split, and planned <= 1.15 x the largest over splits +
// 2 MiB. Returns the planned and the measured bytes.
std::pair<Bytes, Bytes> check(const Case& one, int splits) {
  SCOPED_TRACE("seed " + std::to_string(one.seed) + ": " + one.text());
  set_compute_threads(one.threads);
  const auto model = make_model(one);
  const ProbeDevice device{.compute = one.compute};
  const UnitCosts costs =
      MeasuredWorkspace(
          *model,
          {.device = device, .threads = one.threads, .run = one.run, .cache = {}, .program = {}})
          .costs();
  Bytes planned = 0, measured = 0;
  for (const UnitSpec& unit : model->spec().units) {
    const UnitCost cost =
        costs(one.run.positions, one.run.longest_document).at(static_cast<size_t>(unit.id.value));
    planned = std::max({planned, cost.forward, cost.backward});
    const OneUnitModel alone(*model, unit.id);
    UnitProbe probe(&alone, device, one.run.positions);
    Draw draw(one.seed + 1000);
    for (int i = 0; i < splits; ++i) {
      // The first split has the longest documents, with every position trained.
      const MicroBatchShape& run = one.run;
      const bool random = i > 0;
      std::vector<int64_t> documents(static_cast<size_t>(run.positions / run.longest_document),
                                     run.longest_document);
      if (run.positions % run.longest_document > 0) {
        documents.push_back(run.positions % run.longest_document);
      }
      if (random) documents = draw_documents(draw, run);
      const ProbeTrace trace =
          probe.run(documents, random ? draw.between(1, run.positions) : run.positions);
      const std::string what = unit.name + ", " + std::to_string(documents.size()) + " documents";
      EXPECT_LE(trace.forward, cost.forward) << what;
      EXPECT_LE(trace.saved, cost.saved) << what;
      EXPECT_LE(most_of(trace), std::max(cost.forward, cost.backward)) << what;
      measured = std::max(measured, most_of(trace));
    }
  }
  // The scratch of products in bf16 depends on the CPU, and grows in steps.
  EXPECT_LE(static_cast<double>(planned), 1.15 * static_cast<double>(measured) + 2.0 * kMiB);
  set_compute_threads(1);
  return {planned, measured};
}

// The probe's own buffers are no larger than the run's.
TEST(MeasuredWorkspace, HoldsNoMoreThanTheRun) {
  for (uint64_t seed = 100; seed < 110; ++seed) {
    const Case one = draw_case(seed, 0.02);
    SCOPED_TRACE(one.text());
    const auto model = make_model(one);
    PlanInputs inputs;
    inputs.model = &model->spec();
    inputs.costs = [&](int64_t, int64_t) {
      return std::vector<UnitCost>(model->spec().units.size());
    };
    inputs.state = {.format = StateFormat::kSplit, .compute = one.compute, .drain = DType::kF32};
    inputs.max_tokens = one.run.positions;
    const TierPlan plan = draft_tier_plan(inputs, probe_machine());
    for (const UnitSpec& unit : model->spec().units) {
      const OneUnitModel alone(*model, unit.id);
      EXPECT_LE(probe_bytes(alone, one.compute, one.run.positions), plan.device.owned) << unit.name;
    }
  }
}

// Equal layers of a model are measured once; samples read from disk give the same costs.
TEST(MeasuredWorkspace, RunsEachDistinctUnitOnceAndKeepsIt) {
  Case one;
  one.config = {{"model_type", "llama"},   {"vocab_size", 300},      {"hidden_size", 32},
                {"intermediate_size", 48}, {"num_hidden_layers", 6}, {"num_attention_heads", 4},
                {"num_key_value_heads", 2}};
  one.run = {40, 20};
  const auto model = make_model(one);
  const ScratchDirectory directory;
  const ProbeOptions options{.run = one.run, .cache = directory.path(), .program = "test"};
  const MeasuredWorkspace first(*model, options);
  EXPECT_EQ(first.units_run(), 3);
  const MeasuredWorkspace second(*model, options);
  EXPECT_EQ(second.units_run(), 0);
  EXPECT_EQ(second.text(), first.text());
  const auto a = first.costs()(40, 20), b = second.costs()(40, 20);
  ASSERT_EQ(a.size(), 8u);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].backward, b[i].backward);
    EXPECT_EQ(a[i].source, CostSource::kMeasured);
  }
  // Another program, dtype or micro-batch is measured again.
  ProbeOptions other = options;
  other.program = "another";
  EXPECT_EQ(MeasuredWorkspace(*model, other).units_run(), 3);
  other = options;
  other.device.compute = DType::kBF16;
  EXPECT_EQ(MeasuredWorkspace(*model, other).units_run(), 3);
  other = options;
  other.threads = 2;
  EXPECT_EQ(MeasuredWorkspace(*model, other).units_run(), 3);
  other = options;
  other.run = {80, 20};
  EXPECT_EQ(MeasuredWorkspace(*model, other).units_run(), 3);
}

// All ranks plan with the largest measurement of any rank.
TEST(MeasuredWorkspace, TakesTheLargestOfAllRanks) {
  const Case one = draw_case(3, 0.02);
  const auto model = make_model(one);
  ProbeOptions options{.device = {.compute = one.compute}, .run = one.run};
  MeasuredWorkspace measured(*model, options);
  const UnitCosts alone = measured.costs();
  const auto before = alone(one.run.positions, one.run.longest_document);
  // The other rank's first unit saved ten gigabytes.
  Json texts = Json::parse(measured.text());
  auto samples = *samples_of_text(texts[1].get<std::string>(), "");
  for (ProbeSample& sample : samples) sample.trace.saved = 10 * kGiB;
  texts[1] = samples_to_text("", samples);
  measured.take_largest({measured.text(), texts.dump()});
  const auto after = measured.costs()(one.run.positions, one.run.longest_document);
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(after[0].backward, before[0].backward);
  EXPECT_EQ(after[1].backward, before[1].backward);
  EXPECT_GE(after[1].saved, 10 * kGiB);
}

// For a device that this machine does not have, costs are marked as estimates, and are measured
// without matrix products, in the form that code has on a GPU. Every block has attention by a
// kernel, and the scores have no cap. In fp32, because LibTorch's products in bf16 have scratch on
// some CPUs, which is not estimated.
TEST(MeasuredWorkspace, EstimatesForADeviceThatIsNotHere) {
  uint64_t seed = 4;
  while (draw_case(seed, 0.02).config.at("model_type") != "llama") ++seed;
  Case one = draw_case(seed, 0.02);
  one.compute = DType::kF32;
  const auto model = make_model(one);
  ProbeOptions options{.device = {.compute = one.compute}, .run = one.run};
  const auto here = [&] {
    const AbsentGpu form;
    return MeasuredWorkspace(*model, options).costs()(one.run.positions, 1);
  }();
  options.elsewhere = true;
  const auto there = MeasuredWorkspace(*model, options).costs()(one.run.positions, 1);
  ASSERT_EQ(there.size(), here.size());
  for (size_t i = 0; i < there.size(); ++i) {
    EXPECT_EQ(there[i].source, CostSource::kEstimated);
    EXPECT_EQ(there[i].backward > here[i].backward, i > 0) << i;
    EXPECT_EQ(there[i].saved, here[i].saved) << i;
    if (i + 1 < there.size()) {
      EXPECT_EQ(there[i].forward, here[i].forward) << i;
    }
  }
  // The probe skipped matrix products; afterwards they are computed.
  EXPECT_EQ(at::mm(at::ones({1, 3}), at::ones({3, 1})).item<float>(), 3.0F);
  // The logits of the head's chunk on that device, in the compute dtype.
  const int64_t rows = std::min<int64_t>(one.run.positions, 1024);
  const Bytes chunk = rows * model->arch().vocabulary * width_of(one.compute);
  EXPECT_EQ(there.back().forward - here.back().forward, chunk);
  EXPECT_EQ(there.back().backward - here.back().backward, chunk);
}

// The head's chunk for Llama 3's vocabulary, computed by hand: on a GPU it is long enough that
// reading the head's matrix does not dominate; on the CPU it is 2^24 logits.
TEST(MeasuredWorkspace, KnowsAHeadsChunkOnEitherDevice) {
  EXPECT_EQ(head_chunk_positions(128'256, DeviceKind::kCpu), 130);
  EXPECT_EQ(head_chunk_positions(128'256, DeviceKind::kCuda), 1024);
  const GpuWork work{.attention = {}, .positions_at_once = 1024, .of_position = 128'256 * 2};
  EXPECT_EQ(gpu_chunk_bytes(work, 4096), Bytes{1024} * 128'256 * 2);
  EXPECT_EQ(gpu_chunk_bytes(work, 100), Bytes{100} * 128'256 * 2);
  EXPECT_EQ(gpu_chunk_bytes({}, 4096), 0);
}

// FlashAttention's scratch, computed by hand: 32 heads of 128 and 8 key heads over one document of
// 16,384 tokens on 132 processors take 5 sets of sums (5 x 16,512 x 4,096 x 4 bytes), the
// softmax's, keys and values for all heads, and the results if other documents are in another call.
// An RTX 4090 takes 4 sets.
TEST(MeasuredWorkspace, KnowsWhatFlashAttentionTakesOnAGpu) {
  const AttentionHeads attention{.heads = 32, .kv_heads = 8, .head_dim = 128};
  const Bytes one_call =
      Bytes{5} * 16512 * 4096 * 4 + Bytes{16512} * 32 * 4 + Bytes{2} * 16384 * 4096 * 2;
  const Bytes results = Bytes{16384} * (32 + 2 * 8) * 128 * 2;
  EXPECT_EQ(gpu_scratch(attention, 16384, 16384, 132), one_call + results);
  EXPECT_EQ(gpu_scratch(attention, 16384, 16384, 132) - gpu_scratch(attention, 16384, 16384, 128),
            Bytes{16512} * 4096 * 4);
  // One document was run; beyond it the results of two calls count.
  EXPECT_EQ(gpu_scratch_beyond(attention, 16384, 16384, {16384}, 132), results);
  // Four documents of 4,096 take two sets and five take one, so a smaller micro-batch takes more.
  EXPECT_GT(gpu_scratch_beyond(attention, 20480, 4096, {4096}, 132), Bytes{12000} * 4096 * 4);
  // Short documents are padded to at most twice their rows.
  EXPECT_GT(gpu_scratch(attention, 16384, 128, 132), Bytes{2} * 16384 * 4096 * 4);
  EXPECT_LT(gpu_scratch(attention, 16384, 1, 132), Bytes{2} * 16384 * 4096 * 4);
  EXPECT_EQ(gpu_scratch({}, 16384, 16384, 132), 0);
}

// A unit that needs more memory than the machine has is not run; its cost is a lower bound.
TEST(MeasuredWorkspace, DoesNotRunWhatNoRunHasMemoryFor) {
  const Case one = draw_case(5, 0.02);
  const auto model = make_model(one);
  const MeasuredWorkspace measured(
      *model, {.device = {.compute = one.compute}, .run = one.run, .memory = 0});
  EXPECT_EQ(measured.units_run(), 0);
  for (const UnitCost& cost : measured.costs()(one.run.positions, one.run.longest_document)) {
    EXPECT_EQ(cost.source, CostSource::kEstimated);
  }
}

// Units of the user's own modules that accept only some shapes are measured on those.
TEST(MeasuredWorkspace, RunsModulesOnTheShapesThatTheyTake) {
  auto model = std::make_unique<ModuleModel>();
  torch::nn::Embedding table(7, 4);
  model->add_unit(
      "table", table.ptr(),
      [table](const Carry&, const MicroBatch& batch) mutable { return Carry{table(batch.tokens)}; },
      {{4}});
  torch::nn::Linear pairs(8, 8);
  model->add_unit("pairs", pairs.ptr(),
                  [pairs](const Carry& in, const MicroBatch&) mutable {
                    return Carry{pairs(in[0].view({-1, 8})).view({-1, 4})};
                  },
                  {{4}});
  torch::nn::Linear scores(4, 7);
  model->add_loss("scores", scores.ptr(),
                  [scores](const Carry& in, const MicroBatch&) mutable { return scores(in[0]); });
  for (const int64_t positions : {2, 6, 64}) {
    const auto costs =
        unit_costs(*model, DType::kF32, 1, {positions, positions})(positions, positions);
    ASSERT_EQ(costs.size(), 3u);
    for (const UnitCost& cost : costs) EXPECT_EQ(cost.source, CostSource::kMeasured);
    // Backward holds the gradients of the matrix, the bias and the output.
    EXPECT_GE(costs[1].backward, (64 + 8 + positions * 4) * 4);
    EXPECT_GT(costs[1].saved, 0);
  }
}

// Goal: a unit that takes long is named while it runs, so that a plan of a large model is not
// silent.
TEST(MeasuredWorkspace, NamesAUnitThatTakesLong) {
  std::promise<void> said;
  const std::shared_future<void> heard = said.get_future().share();
  ModuleModel model;
  torch::nn::Embedding table(7, 4);
  model.add_unit("table", table.ptr(),
                 [table, heard](const Carry&, const MicroBatch& batch) mutable {
                   heard.wait_for(std::chrono::minutes(1));
                   return Carry{table(batch.tokens)};
                 },
                 {{4}});
  torch::nn::Linear scores(4, 7);
  model.add_loss("scores", scores.ptr(),
                 [scores](const Carry& in, const MicroBatch&) mutable { return scores(in[0]); });
  std::vector<std::string> named;
  const MeasuredWorkspace measured(model, {.run = {2, 2}, .on_slow = [&](const std::string& unit) {
                                             if (named.empty()) said.set_value();
                                             named.push_back(unit);
                                           }});
  ASSERT_FALSE(named.empty());
  EXPECT_EQ(named.front(), "table");
  EXPECT_EQ(measured.units_run(), 2);
}

class WorkspaceCover : public testing::TestWithParam<uint64_t> {};

// The planned workspace covers every split of eight random cases.
TEST_P(WorkspaceCover, PlansWhatIsTaken) {
  for (uint64_t i = 0; i < 8; ++i) check(draw_case(GetParam() * 8 + i, 0.25), 3);
}

INSTANTIATE_TEST_SUITE_P(, WorkspaceCover, testing::Range<uint64_t>(0, 5));

// Each case takes some seconds, 20 at most: a probe and four splits.
class LongWorkspaceCover : public testing::TestWithParam<uint64_t> {};

// The planned workspace covers every split of one large random case.
TEST_P(LongWorkspaceCover, PlansWhatIsTaken) {
  const Case one = draw_case(10'000 + GetParam(), 1.0);
  const auto [planned, measured] = check(one, 4);
  std::cout << "planned " << planned << ", took " << measured << ": " << one.text() << "\n";
}

INSTANTIATE_TEST_SUITE_P(, LongWorkspaceCover, testing::Range<uint64_t>(0, 300));

}  // namespace
}  // namespace longshore
