// A rule of whole matrices (muon_rule.h) with AdamW beside it in the same units, through the whole
// engine: on the host and on drives, on one, two and three ranks and on replicas, with fused,
// stacked and transposed matrices, checkpoints, resumes and exact plans. LibTorch repeats the
// updates from the gradients of a run.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/json.h"
#include "base/quiet_log.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/models/decoder_model.h"
#include "model/parameters/model_spec.h"
#include "offload/engine/probe/measured_workspace.h"
#include "tests/nvme/scratch_file.h"
#include "tests/trainer/engine_run.h"
#include "tests/trainer/muon_rule.h"

namespace longshore {
namespace {

constexpr double kMatrixRate = 0.02;
constexpr int64_t kMatrixSteps = 4;
constexpr int64_t kMatrixPositions = 12;
constexpr int64_t kMatrixVocabulary = 131;  // a table is then no small parameter

ArchSpec matrix_arch(const std::string& family) {
  Json config = {{"model_type", family},
                 {"vocab_size", kMatrixVocabulary},
                 {"hidden_size", 32},
                 {"intermediate_size", 48},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"max_position_embeddings", 64},
                 {"rms_norm_eps", 1e-5},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", family == "llama"}};
  if (family == "qwen3_moe") {
    config.update({{"num_experts", 4},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"head_dim", 8},
                   {"norm_topk_prob", true}});
  }
  if (family == "phi3") config.update({{"pad_token_id", 0}});
  if (family == "gpt2") {
    config = {{"model_type", family}, {"vocab_size", kMatrixVocabulary},
              {"n_embd", 32},         {"n_layer", 2},
              {"n_head", 4},          {"n_positions", 32}};
  }
  ArchSpec arch = read_arch_spec(config, "config.json");
  arch.moe.fused = family == "qwen3_moe";
  return arch;
}

std::unique_ptr<DecoderModel> matrix_model(const std::string& family) {
  const ArchSpec arch = matrix_arch(family);
  ModelSpec spec = make_model_spec(arch, {});
  keep_matrices_whole(spec, *muon_beside_adamw());
  return std::make_unique<DecoderModel>(arch, spec);
}

// Fills a parameter with values larger than those of a new model.
void initial_values(const ParamSpec& parameter, int64_t begin, std::span<float> out) {
  InitSpec init = parameter.init;
  if (init.kind == InitSpec::Kind::kNormal) init.standard_deviation = 0.2;
  fill_random(parameter.name, init, 5, begin, out);
}

// Returns the micro-batch of a step. There is one, so that sums over ranks have the same bits.
MicroBatch matrix_batch(int64_t step) {
  static std::map<int64_t, MicroBatch> made;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = made.try_emplace(step);
  if (!is_new) return place->second;
  torch::manual_seed(static_cast<uint64_t>(step));
  MicroBatch& batch = place->second;
  batch.tokens = torch::randint(kMatrixVocabulary, {kMatrixPositions}, torch::kLong);
  batch.targets = torch::randint(kMatrixVocabulary, {kMatrixPositions}, torch::kLong);
  batch.positions = torch::arange(kMatrixPositions);
  batch.document_starts = {0, kMatrixPositions};
  return batch;
}

struct MatrixRun {
  std::string family;
  int32_t ranks = 1;
  std::string drive = {};   // the directory of the state on a drive; empty: it is in host memory
  int32_t shard_ranks = 0;  // > 0: hybrid_shard
  StateFormat format = StateFormat::kSplit;
  GradientRecord* record = nullptr;

  ShardTopology topology() const {
    return shard_ranks > 0 ? make_topology(ShardStrategy::kHybridShard, ranks, shard_ranks)
                           : make_topology(ShardStrategy::kFullShard, ranks, ranks);
  }
};

UnitCosts matrix_costs(const std::string& family) {
  static std::map<std::string, UnitCosts> known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(family);
  if (is_new) {
    place->second =
        unit_costs(*matrix_model(family), DType::kF32, 1,
                   {.positions = kMatrixPositions, .longest_document = kMatrixPositions});
  }
  return place->second;
}

PlanInputs matrix_inputs(const Model& model, const MatrixRun& run) {
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = matrix_costs(run.family);
  inputs.state = {.format = run.format,
                  .compute = DType::kF32,
                  .drain = DType::kF32,
                  .regions = kMuonBesideAdamW};
  inputs.matrix_scratch = [](int64_t rows, int64_t columns) {
    return MuonRule().scratch_elements(rows, columns);
  };
  inputs.topology = run.topology();
  inputs.ranks_per_node = run.ranks;
  inputs.max_tokens = kMatrixPositions;
  inputs.optimizer_threads = 2;
  inputs.nvme.state = inputs.nvme.parameters = !run.drive.empty();
  if (inputs.nvme.state) inputs.nvme.directories = {run.drive};
  inputs.device_cap = 2 * kGiB;
  return inputs;
}

TierPlan matrix_plan(const Model& model, const MatrixRun& run) {
  return make_tier_plan(matrix_inputs(model, run), probe_machine());
}

// Returns the bytes that an update of all parameters moves. Both halves of the master and the
// rule's regions are read and written, and gradients are read.
Bytes traffic_of_update(const ModelSpec& spec) {
  Bytes bytes = 0;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      bytes += parameter.elements() * (parameter.whole_matrices ? 20 : 28);
    }
  }
  return bytes;
}

// Trains up to update `last` and saves a checkpoint in `folder`; returns its path.
std::string run_matrices(const MatrixRun& run, int64_t last, const std::string& folder,
                         const std::string& from = "", bool from_drive = false) {
  matrix_costs(run.family);
  for (int64_t step = 1; step <= last; ++step) matrix_batch(step);
  const auto make = [&run] {
    auto model = matrix_model(run.family);
    std::unique_ptr<UpdateRule> rule = muon_beside_adamw();
    if (run.record != nullptr) {
      rule = std::make_unique<RecordedRule>(std::move(rule), run.record);
    }
    std::map<std::string, ParamSpec> parameters;
    for (const ParamSpec& parameter : model->spec().whole_parameters()) {
      parameters[parameter.name] = parameter;
    }
    EngineInputs inputs{
        .plan = matrix_plan(*model, run),
        .rule = std::move(rule),
        .initial = [parameters](const std::string& name, int64_t begin, std::span<float> out) {
          initial_values(parameters.at(name), begin, out);
        }};
    if (run.format == StateFormat::kSplit) {
      inputs.bytes_of_update = traffic_of_update(model->spec());
    }
    inputs.model = std::move(model);
    return inputs;
  };
  const auto batches = [](int64_t step, int32_t rank) {
    return rank == 0 ? std::vector{matrix_batch(step)} : std::vector<MicroBatch>();
  };
  return run_engine({.topology = run.topology(),
                     .make = make,
                     .batches = batches,
                     .loss_terms = static_cast<double>(kMatrixPositions),
                     .lr = kMatrixRate,
                     .from = from,
                     .from_drive = from_drive},
                    last, folder);
}

// Reads a checkpoint, whose bytes are those of the plan and whose matrices no file cuts.
SavedState matrix_state(const std::string& path, const MatrixRun& run) {
  SavedState state = saved_state(path);
  const auto model = matrix_model(run.family);
  size_t tensors = 0;
  for (const ParamSpec& parameter : model->spec().whole_parameters()) {
    tensors += parameter.whole_matrices ? 2 : 3;
  }
  EXPECT_EQ(state.size(), tensors);
  if (run.format == StateFormat::kSplit) {
    EXPECT_EQ(matrix_plan(*model, run).checkpoint_bytes, bytes_of_values(state));
  }
  return state;
}

bool is_of_matrix_rule(const std::string& name, const at::Tensor& value) {
  return value.dim() >= 2 && name.find("embed") == name.npos && name.find("lm_head") == name.npos &&
         name.find("wte") == name.npos && name.find("wpe") == name.npos;
}

// Returns the matrices of a parameter, [outputs, inputs], as views.
std::vector<at::Tensor> matrices_of(const std::string& name, const at::Tensor& whole) {
  const auto is = [&name](const char* part) { return name.find(part) != name.npos; };
  if (is("qkv_proj")) return whole.split_with_sizes({32, 16, 16}, 0);
  if (is("c_attn")) return whole.t().chunk(3, 0);
  if (is("c_proj") || is("c_fc")) return {whole.t()};
  if (is("experts.down_proj")) return whole.unbind(0);
  if (is("experts.gate_up_proj")) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& expert : whole.unbind(0)) {
      for (const at::Tensor& half : expert.chunk(2, 0)) all.push_back(half);
    }
    return all;
  }
  return is("gate_up_proj") ? whole.chunk(2, 0) : std::vector<at::Tensor>{whole};
}

at::Tensor orthogonalised(const at::Tensor& update) {
  const bool tall = update.size(0) > update.size(1);
  at::Tensor x = (tall ? update.t() : update).contiguous();
  x = x / (x.norm() + kMuonEps);
  for (int step = 0; step < kMuonSteps; ++step) {
    const at::Tensor a = x.mm(x.t());
    x = kMuonTerms[0] * x + (kMuonTerms[1] * a + kMuonTerms[2] * a.mm(a)).mm(x);
  }
  return tall ? x.t() : x;
}

// Repeats a run's updates with LibTorch, from its gradients.
SavedState repeated_by_torch(const ModelSpec& spec, const GradientRecord& record) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values, momenta;
  std::vector<at::Tensor> others;
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    at::Tensor& value = values[parameter.name] = torch::empty(parameter.shape);
    initial_values(parameter, 0, {value.data_ptr<float>(), static_cast<size_t>(value.numel())});
    if (is_of_matrix_rule(parameter.name, value)) {
      momenta[parameter.name] = torch::zeros_like(value);
    } else {
      others.push_back(value);
    }
  }
  torch::optim::AdamW adamw(
      others,
      torch::optim::AdamWOptions(kMatrixRate).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.0));
  for (const auto& [update, gradients] : record.values_) {
    for (auto& [name, value] : values) {
      std::vector<float> elements;
      for (const auto& [element, gradient] : gradients.at(name)) elements.push_back(gradient);
      EXPECT_EQ(static_cast<int64_t>(elements.size()), value.numel()) << name;
      const at::Tensor gradient = torch::tensor(elements).view(value.sizes());
      if (!momenta.contains(name)) {
        value.mutable_grad() = gradient;
        continue;
      }
      momenta[name].mul_(kMuonMomentum).add_(gradient);
      const std::vector<at::Tensor> to = matrices_of(name, value),
                                    by =
                                        matrices_of(name, gradient + kMuonMomentum * momenta[name]);
      for (size_t i = 0; i < to.size(); ++i) {
        const double tall = static_cast<double>(to[i].size(0)) / static_cast<double>(to[i].size(1));
        to[i].sub_(orthogonalised(by[i]), kMatrixRate * std::sqrt(std::max(1.0, tall)));
      }
    }
    adamw.step();
  }
  SavedState state;
  for (auto& [name, value] : values) {
    state[name + ".master"] = floats_of(value);
    if (momenta.contains(name)) {
      state[name + ".momentum_buffer"] = floats_of(momenta[name]);
      continue;
    }
    const auto& kept = static_cast<const torch::optim::AdamWParamState&>(
        *adamw.state().at(value.unsafeGetTensorImpl()));
    state[name + ".exp_avg"] = floats_of(kept.exp_avg());
    state[name + ".exp_avg_sq"] = floats_of(kept.exp_avg_sq());
  }
  return state;
}

// Newton-Schulz multiplies a direction that is small beside the largest by up to 3.4445^5 = 485,
// and the rounding of sums in another order with it: 1e-7 * 485 * sqrt(terms), times the rate, a
// step.
constexpr double kMatrixTolerance = 2e-4;

void expect_matrices_near(const SavedState& got, const SavedState& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  double moved = 0.0;
  for (const auto& [name, values] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    ASSERT_EQ(got.at(name).size(), values.size()) << name;
    const bool master = name.ends_with(".master");
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(got.at(name)[i] - values[i]);
      ASSERT_LE(difference, master ? kMatrixTolerance : 1e-5) << name << " " << i;
      moved = std::max(moved, difference);
    }
  }
  testing::Test::RecordProperty("largest_difference", std::to_string(moved));
}

class MatrixRule : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families, MatrixRule,
                         testing::Values("llama", "qwen3_moe", "phi3", "gpt2"),
                         [](const auto& family) { return family.param; });

// The updates are those of LibTorch from the same gradients, with the same bits on both tiers, on
// all numbers of ranks and on replicas.
TEST_P(MatrixRule, GivesTheValuesOfTorchOnEveryTierAndRankCount) {
  const QuietLog quiet;
  const ScratchDirectory folder;
  GradientRecord record;
  const MatrixRun first = {.family = GetParam(), .record = &record};
  const SavedState wanted =
      matrix_state(run_matrices(first, kMatrixSteps, folder.path() + "/one"), first);
  expect_matrices_near(wanted, repeated_by_torch(matrix_model(GetParam())->spec(), record));
  for (const int32_t ranks : {1, 2, 3}) {
    const ScratchDirectory drive;
    const std::string path = folder.path() + "/" + std::to_string(ranks);
    const MatrixRun host = {.family = GetParam(), .ranks = ranks};
    const MatrixRun drives = {.family = GetParam(), .ranks = ranks, .drive = drive.path()};
    EXPECT_EQ(matrix_state(run_matrices(host, kMatrixSteps, path + "host"), host), wanted) << ranks;
    EXPECT_EQ(matrix_state(run_matrices(drives, kMatrixSteps, path + "drive"), drives), wanted)
        << ranks;
  }
  const MatrixRun replicas = {.family = GetParam(), .ranks = 4, .shard_ranks = 2};
  EXPECT_EQ(matrix_state(run_matrices(replicas, kMatrixSteps, folder.path() + "/hybrid"), replicas),
            wanted);
}

// A run that is resumed from a checkpoint on another tier and number of ranks, or from its drives,
// has the same bits.
TEST_P(MatrixRule, GoesOnFromCheckpointsAndDrives) {
  const QuietLog quiet;
  const ScratchDirectory folder, drive, other;
  const std::string path = folder.path();
  const MatrixRun one = {.family = GetParam()}, three = {.family = GetParam(), .ranks = 3};
  const MatrixRun two = {.family = GetParam(), .ranks = 2, .drive = drive.path()};
  const MatrixRun on_drive = {.family = GetParam(), .drive = other.path()};
  const SavedState whole = matrix_state(run_matrices(one, kMatrixSteps, path + "/whole"), one);
  const std::string half = run_matrices(two, 2, path + "/half");
  for (const MatrixRun& run : {one, three, on_drive}) {
    const std::string to = path + "/" + std::to_string(run.ranks) + (run.drive.empty() ? "h" : "d");
    EXPECT_EQ(matrix_state(run_matrices(run, kMatrixSteps, to, half), run), whole) << to;
  }
  EXPECT_EQ(matrix_state(run_matrices(two, kMatrixSteps, path + "/on", "", true), two), whole);
}

// With narrow moments AdamW's are narrow and the matrices' own region is not; tiers and rank counts
// still agree.
TEST(MatrixRuleFormats, NarrowMomentsAreTheElementsAlone) {
  const QuietLog quiet;
  const ScratchDirectory folder, drive;
  const MatrixRun host = {.family = "phi3", .format = StateFormat::kSplitInt8};
  const MatrixRun drives = {
      .family = "phi3", .ranks = 2, .drive = drive.path(), .format = StateFormat::kSplitInt8};
  const SavedState wanted = matrix_state(run_matrices(host, 3, folder.path() + "/host"), host);
  EXPECT_EQ(matrix_state(run_matrices(drives, 3, folder.path() + "/drive"), drives), wanted);
}

// A checkpoint or a drive of another rule is refused, and so is one with other whole matrices.
TEST(MatrixRuleFormats, TheStateOfAnotherRuleIsRefused) {
  const QuietLog quiet;
  const ScratchDirectory folder, drive;
  const MatrixRun run = {.family = "llama", .drive = drive.path()};
  const Checkpoint checkpoint = Checkpoint::open(run_matrices(run, 1, folder.path()));
  const auto message = [&checkpoint](const ModelSpec& spec, const StateOptions& options) {
    RankState state(spec, options);
    try {
      checkpoint.restore(state.model(), state.sweep());
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const ModelSpec elements = make_model_spec(matrix_arch("llama"), {});
  const StateOptions both = {.format = StateFormat::kSplit,
                             .compute = DType::kF32,
                             .drain = DType::kF32,
                             .regions = kMuonBesideAdamW};
  EXPECT_EQ(message(matrix_model("llama")->spec(), both), "");
  const std::string adamw = message(elements, {});
  EXPECT_NE(adamw.find("momentum_buffer"), std::string::npos) << adamw;
  const std::string grain = message(elements, both);
  EXPECT_NE(grain.find("whole matrices"), std::string::npos) << grain;
  const DecoderModel model(matrix_arch("llama"), elements);
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = matrix_costs("llama");
  inputs.state = {.format = StateFormat::kSplit, .compute = DType::kF32, .drain = DType::kF32};
  inputs.max_tokens = kMatrixPositions;
  inputs.nvme.state = inputs.nvme.parameters = true;
  inputs.nvme.directories = {drive.path()};
  inputs.device_cap = 2 * kGiB;
  Engine engine(&model, make_tier_plan(inputs, probe_machine()),
                std::make_unique<AdamWRule>(AdamWOptions{}), {}, RunKey{{3, 4}});
  EXPECT_THROW(engine.commits().start(17), Error);
}

// The plan counts the scratch of updates and says what whole matrices cost in balance.
TEST(MatrixRuleFormats, ThePlanCountsScratchAndPadding) {
  const auto model = matrix_model("llama");
  const TierPlan one = matrix_plan(*model, {.family = "llama"});
  // Two matrices of 48 x 32 at a time.
  EXPECT_EQ(one.host.matrix_scratch, 2 * 4 * (2 * 48 * 32 + 2 * 32 * 32));
  EXPECT_EQ(one.host.matrix_padding, 0);
  const TierPlan three = matrix_plan(*model, {.family = "llama", .ranks = 3});
  // A block has 1024, 512, 512, 1024, 1536, 1536, 1536 elements: 2560 a rank are needed, and the
  // smallest shards that cut no matrix have 3072. An element has its master and one momentum.
  EXPECT_EQ(three.host.matrix_padding, 2 * 8 * (3 * 3072 - 7680) / 3);
  // A rule without scratch leaves as much empty, and the plan says so.
  PlanInputs inputs = matrix_inputs(*model, {.family = "llama", .ranks = 3});
  inputs.matrix_scratch = {};
  const TierPlan without = make_tier_plan(inputs, probe_machine());
  EXPECT_EQ(without.host.matrix_padding, three.host.matrix_padding);
  EXPECT_EQ(without.host.matrix_scratch, 0);
  EXPECT_EQ(without.host.total, three.host.total - three.host.matrix_scratch);
  EXPECT_TRUE(std::ranges::any_of(without.host.lines, [](const PlanLine& line) {
    return line.name == "matrix updates" && line.bytes == 0 &&
           line.detail.find("of the rank's state empty") != line.detail.npos;
  }));
}

// Units of rows keep matrices whole: halves and groups of experts cut none, and the tables that
// pieces cut are AdamW's.
TEST(MatrixRuleFormats, UnitsOfHalvesAndPiecesKeepMatricesWhole) {
  for (const std::string family : {"llama", "qwen3_moe"}) {
    const ArchSpec arch = matrix_arch(family);
    ModelSpec spec = make_model_spec(arch, {});
    keep_matrices_whole(spec, *muon_beside_adamw());
    for (const auto kind : {UnitPolicy::Kind::kHalf, UnitPolicy::Kind::kPiece}) {
      UnitPolicy policy;
      policy.kind = kind;
      const DecoderModel model(arch, spec, cut_for(policy, arch));
      EXPECT_GT(model.spec().units.size(), spec.units.size());
      EXPECT_EQ(model.spec().parameter_elements(), spec.parameter_elements());
      make_layouts(model.spec(), 3, DType::kF32);
    }
  }
}

}  // namespace
}  // namespace longshore
