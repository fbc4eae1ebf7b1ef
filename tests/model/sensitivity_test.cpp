// Every switch of a family matters: a model with one switch wrong gives other logits, by more than
// the tolerance of parity. So the golden cases can detect each mistake.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "model/decoder/decoder_units.h"
#include "tests/model/golden_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

// The limit is ten times the tolerance of parity; most changes are a thousand times as large.
constexpr double kLeastChange = 1e-4;

struct Mistake {
  std::string golden, what;
  std::function<void(ArchSpec&)> make;
};

template <typename Change>
std::function<void(ArchSpec&)> in_layers(Change change) {
  return [change](ArchSpec& arch) {
    for (LayerSpec& layer : arch.layers) change(layer);
  };
}

const std::vector<Mistake>& mistakes() {
  using Scaling = RopeSpec::Scaling;
  static const std::vector<Mistake> table = {
      {"gemma3_text", "erf for tanh gelu",
       [](auto& arch) { arch.activation = Activation::kGeluErf; }},
      {"gemma3_text", "w for 1 + w", [](auto& arch) { arch.norm = NormKind::kRms; }},
      {"gemma3_text", "embedding not scaled", [](auto& arch) { arch.embedding_scale = 1.0; }},
      {"gemma3_text", "scale by head_dim",
       in_layers([](auto& layer) { layer.attention_scale = 1.0 / std::sqrt(12.0); })},
      {"gemma3_text", "one theta", in_layers([](auto& layer) { layer.local_rope = false; })},
      {"gemma3_text", "global rope not scaled",
       [](auto& arch) { arch.rope.scaling = Scaling::kNone; }},
      {"gemma3_text", "window longer by one",
       in_layers([](auto& layer) { layer.window += layer.window > 0 ? 1 : 0; })},
      {"gemma2", "scores not capped", [](auto& arch) { arch.score_cap = 0.0; }},
      {"gemma2", "logits not capped", [](auto& arch) { arch.logit_cap = 0.0; }},
      {"gemma2", "the caps exchanged",
       [](auto& arch) { std::swap(arch.score_cap, arch.logit_cap); }},
      {"gemma2", "scale by head_dim",
       in_layers([](auto& layer) { layer.attention_scale = 1.0 / std::sqrt(12.0); })},
      {"gemma2", "embedding not scaled", [](auto& arch) { arch.embedding_scale = 1.0; }},
      {"gemma2", "w for 1 + w", [](auto& arch) { arch.norm = NormKind::kRms; }},
      {"gemma2", "erf for tanh gelu", [](auto& arch) { arch.activation = Activation::kGeluErf; }},
      {"gemma2", "window longer by one",
       in_layers([](auto& layer) { layer.window += layer.window > 0 ? 1 : 0; })},
      {"gemma2", "window shorter by one",
       in_layers([](auto& layer) { layer.window -= layer.window > 0 ? 1 : 0; })},
      {"gemma2", "odd layers slide", [](auto& arch) { std::swap(arch.layers[0], arch.layers[1]); }},
      {"gemma3-capped", "logits not capped", [](auto& arch) { arch.logit_cap = 0.0; }},
      {"mistral", "window shorter by one", in_layers([](auto& layer) { --layer.window; })},
      {"granite", "embedding_multiplier", [](auto& arch) { arch.embedding_scale = 1.0; }},
      {"granite", "residual_multiplier", [](auto& arch) { arch.residual_scale = 1.0; }},
      {"granite", "logits_scaling", [](auto& arch) { arch.logit_divisor = 1.0; }},
      {"granite", "attention_multiplier",
       in_layers([](auto& layer) { layer.attention_scale = 0.5; })},
      {"smollm3", "positions in every layer", in_layers([](auto& layer) { layer.rotates = true; })},
      {"smollm3", "no window", in_layers([](auto& layer) { layer.window = 0; })},
      {"seed_oss", "yarn's ramp", [](auto& arch) { arch.rope.scaling = Scaling::kLinear; }},
      {"seed_oss", "yarn's attention factor", [](auto& arch) { arch.rope.attention_factor = 1.0; }},
      {"seed_oss", "yarn's whole dimensions",
       [](auto& arch) { arch.rope.whole_dimensions = false; }},
      {"olmo3", "yarn in sliding layers", in_layers([](auto& layer) { layer.local_rope = false; })},
      {"olmo3", "beta_fast", [](auto& arch) { arch.rope.beta_fast = 32.0; }},
      {"olmo3", "attention_factor", [](auto& arch) { arch.rope.attention_factor = 1.0; }},
      {"phi3", "a divisor of short documents",
       [](auto& arch) { arch.rope.short_factors[1] = 1.0; }},
      {"phi3", "attention factor", [](auto& arch) { arch.rope.attention_factor = 1.0; }},
      {"phi3", "the whole head turns",
       [](auto& arch) {
         arch.rope.partial = 1.0;
         arch.rope.scaling = Scaling::kNone;
       }},
      {"phi3-long", "short divisors in long documents",
       [](auto& arch) { arch.rope.long_factors = arch.rope.short_factors; }},
      {"phi3-long", "the original length",
       [](auto& arch) { arch.rope.original_max_positions = 64; }},
      {"glm4", "halves for pairs", [](auto& arch) { arch.rope.pairs = false; }},
      {"glm4", "the whole head turns", [](auto& arch) { arch.rope.partial = 1.0; }},
      {"hunyuan_v1_dense", "norm before the rotation",
       [](auto& arch) { arch.qk_norm_after_rope = false; }},
      {"hunyuan_v1_dense", "alpha", [](auto& arch) { arch.rope.theta = 10000.0; }},
      {"ministral3", "queries do not grow", [](auto& arch) { arch.query_growth_beta = 0.0; }},
      {"llama", "theta", [](auto& arch) { arch.rope.theta = 10000.0; }},
      {"llama", "llama3's scaling", [](auto& arch) { arch.rope.scaling = Scaling::kNone; }},
      {"gpt2-plain", "tanh for erf gelu",
       [](auto& arch) { arch.activation = Activation::kGeluTanh; }},
  };
  return table;
}

const std::vector<Mistake>& mistakes_with_sliding_rope() {
  using Scaling = RopeSpec::Scaling;
  static const std::vector<Mistake> table = {
      {"ministral", "a window in every layer", in_layers([](auto& layer) { layer.window = 5; })},
      {"starcoder2", "erf for tanh gelu",
       [](auto& arch) { arch.activation = Activation::kGeluErf; }},
      {"starcoder2", "window longer by one", in_layers([](auto& layer) { ++layer.window; })},
      {"ernie4_5", "halves for pairs", [](auto& arch) { arch.rope.pairs = false; }},
      {"exaone4", "positions in every layer", in_layers([](auto& layer) { layer.rotates = true; })},
      {"exaone4", "no positions", in_layers([](auto& layer) { layer.rotates = false; })},
      {"exaone4", "window longer by one",
       in_layers([](auto& layer) { layer.window += layer.window > 0 ? 1 : 0; })},
      {"exaone4", "llama3's scaling", [](auto& arch) { arch.rope.scaling = Scaling::kNone; }},
      {"exaone4", "norm after the rotation", [](auto& arch) { arch.qk_norm_after_rope = true; }},
      {"cohere", "no positions", in_layers([](auto& layer) { layer.rotates = false; })},
      {"cohere2", "halves for pairs", [](auto& arch) { arch.rope.pairs = false; }},
      {"cohere2", "positions in every layer", in_layers([](auto& layer) { layer.rotates = true; })},
      {"cohere2", "the mean stays", [](auto& arch) { arch.norm = NormKind::kRmsWide; }},
      {"cohere2", "logits not scaled", [](auto& arch) { arch.logit_divisor = 1.0; }},
      {"cohere2", "the norm's epsilon", [](auto& arch) { arch.norm_eps = 1e-2; }},
      {"cohere2", "window shorter by one",
       in_layers([](auto& layer) { layer.window -= layer.window > 0 ? 1 : 0; })},
      {"muse_glimmer", "rows of the embedding as stored",
       [](auto& arch) { arch.embedding_norm = false; }},
      {"muse_glimmer", "queries and keys without a norm",
       [](auto& arch) { arch.qk_norm = QueryKeyNorm::kNone; }},
      {"muse_glimmer", "queries not scaled",
       in_layers([](auto& layer) { layer.attention_scale = 1.0 / std::sqrt(8.0); })},
      {"muse_glimmer", "no gate", [](auto& arch) { arch.output_gate = false; }},
      {"muse_glimmer", "one epsilon", [](auto& arch) { arch.post_norm_eps = {}; }},
      {"muse_glimmer", "1 + w in the last norm", [](auto& arch) { arch.final_norm = {}; }},
      {"muse_glimmer", "w for 1 + w", [](auto& arch) { arch.norm = NormKind::kRms; }},
      {"muse_glimmer", "positions in every layer",
       in_layers([](auto& layer) { layer.rotates = true; })},
      {"muse_glimmer", "logits not scaled", [](auto& arch) { arch.logit_divisor = 1.0; }},
      {"muse_glimmer", "logits not capped", [](auto& arch) { arch.logit_cap = 0.0; }},
  };
  return table;
}

const std::vector<Mistake>& mistakes_of_gemma4() {
  static const std::vector<Mistake> table = {
      {"gemma4_text", "w + 1 for w", [](auto& arch) { arch.norm = NormKind::kRmsOffset; }},
      {"gemma4_text", "values without a norm", [](auto& arch) { arch.value_norm = false; }},
      {"gemma4_text", "outputs not scaled", [](auto& arch) { arch.layer_scale = false; }},
      {"gemma4_text", "logits not capped", [](auto& arch) { arch.logit_cap = 0.0; }},
      {"gemma4_text", "embedding not scaled", [](auto& arch) { arch.embedding_scale = 1.0; }},
      {"gemma4_text", "scale by head_dim",
       in_layers([](auto& layer) { layer.attention_scale = 1.0 / std::sqrt(8.0); })},
      {"gemma4_text", "every pair turns", [](auto& arch) { arch.rope.turning = 1.0; }},
      {"gemma4_text", "frequencies over the turning part",
       [](auto& arch) { arch.rope.partial = 0.25, arch.rope.turning = 1.0; }},
      {"gemma4_text", "one theta", in_layers([](auto& layer) { layer.local_rope = false; })},
      {"gemma4_text", "window longer by one",
       in_layers([](auto& layer) { layer.window += layer.window > 0 ? 1 : 0; })},
      {"gemma4", "outputs not scaled", [](auto& arch) { arch.layer_scale = false; }},
      {"gemma4", "logits not capped", [](auto& arch) { arch.logit_cap = 0.0; }},
      {"gemma4_text-shared", "keys of an earlier sliding layer",
       [](auto& arch) { arch.layers[4].keys_of = 0; }},
      {"gemma4-e2b", "silu for gelu", [](auto& arch) { arch.activation = Activation::kSilu; }},
      {"gemma4-e2b", "the norm's epsilon", [](auto& arch) { arch.norm_eps = 1e-2; }},
      {"gemma4-e2b", "outputs not scaled", [](auto& arch) { arch.layer_scale = false; }},
      {"gemma4_text-shared", "values without a norm", [](auto& arch) { arch.value_norm = false; }},
      {"gemma4_text-shared", "no window where keys are read",
       [](auto& arch) { arch.layers[4].window = 0; }},
      // A norm of the experts' sum hides whether weights are renormalised.
      {"gemma4_text-moe", "one expert fewer", [](auto& arch) { --arch.moe.top_k; }},
      {"gemma4_text-moe", "gate and up alternate", [](auto& arch) { arch.moe.interleaved = true; }},
      {"gemma4_text-moe", "w + 1 for w", [](auto& arch) { arch.norm = NormKind::kRmsOffset; }},
      {"gemma4_text-moe", "outputs not scaled", [](auto& arch) { arch.layer_scale = false; }},
      {"gemma4_text-moe-shared", "no window where keys are read",
       [](auto& arch) { arch.layers[2].window = 0; }},
  };
  return table;
}

const std::vector<Mistake>& mistakes_with_delta_rule() {
  static const std::vector<Mistake> table = {
      {"qwen3_5_text", "w for 1 + w", [](auto& arch) { arch.norm = NormKind::kRms; }},
      {"qwen3_5_text", "the whole head turns", [](auto& arch) { arch.rope.partial = 1.0; }},
      {"qwen3_5_text", "the norm's epsilon", [](auto& arch) { arch.norm_eps = 1e-3; }},
      {"qwen3_5_text", "key heads of half the width",
       [](auto& arch) { arch.delta.key_heads = 4, arch.delta.key_dim = 3; }},
      {"qwen3_5_moe_text", "w for 1 + w", [](auto& arch) { arch.norm = NormKind::kRms; }},
      {"qwen3_5_moe_text", "weights not renormalised",
       [](auto& arch) { arch.moe.renormalise = false; }},
      {"qwen3_5_moe", "weights not renormalised", [](auto& arch) { arch.moe.renormalise = false; }},
      {"qwen3_5_moe", "the whole head turns", [](auto& arch) { arch.rope.partial = 1.0; }},
      {"qwen3_next", "w for 1 + w", [](auto& arch) { arch.norm = NormKind::kRms; }},
      {"qwen3_next", "weights renormalised", [](auto& arch) { arch.moe.renormalise = true; }},
      // The matrices have the shapes of these sizes too.
      {"qwen3_next", "rows by other key heads",
       [](auto& arch) { arch.delta.key_heads = 4, arch.delta.key_dim = 3; }},
  };
  return table;
}

const std::vector<Mistake>& mistakes_with_convolutions() {
  static const std::vector<Mistake> table = {
      {"lfm2", "the norm's epsilon", [](auto& arch) { arch.norm_eps = 1e-3; }},
      {"lfm2", "norms of heads behind the rotation",
       [](auto& arch) { arch.qk_norm_after_rope = true; }},
      {"lfm2", "theta", [](auto& arch) { arch.rope.theta = 10000.0; }},
      {"lfm2-plain", "linear scaling",
       [](auto& arch) { arch.rope.scaling = RopeSpec::Scaling::kNone; }},
      {"lfm2-plain", "theta", [](auto& arch) { arch.rope.theta = 10000.0; }},
      {"nemotron_h", "the norm's epsilon", [](auto& arch) { arch.norm_eps = 1e-2; }},
      {"nemotron_h", "no least step", [](auto& arch) { arch.mamba.least_step = 0.0; }},
      {"nemotron_h", "relu for its square",
       [](auto& arch) { arch.activation = Activation::kRelu; }},
      {"nemotron_h", "one group of twice the state",
       [](auto& arch) { arch.mamba.groups = 1, arch.mamba.state = 10; }},
      {"nemotron_h", "positions in attention",
       in_layers([](auto& layer) { layer.rotates = true; })},
      {"nemotron_h-plain", "relu for silu",
       [](auto& arch) { arch.activation = Activation::kRelu; }},
      {"nemotron_h-moe", "relu for its square",
       [](auto& arch) { arch.activation = Activation::kRelu; }},
      {"nemotron_h-moe", "weights not renormalised",
       [](auto& arch) { arch.moe.renormalise = false; }},
      {"nemotron_h-moe", "weights not scaled", [](auto& arch) { arch.moe.weight_scale = 1.0; }},
      {"nemotron_h-moe", "experts of every group", [](auto& arch) { arch.moe.kept_groups = 2; }},
      {"nemotron_h-latent", "weights renormalised",
       [](auto& arch) { arch.moe.renormalise = true; }},
      {"nemotron_h-latent", "one expert fewer", [](auto& arch) { --arch.moe.top_k; }},
      {"nemotron_h-fused", "softmax for sigmoid",
       [](auto& arch) { arch.moe.scores = RouterScores::kSoftmax; }},
  };
  return table;
}

const std::vector<Mistake>& mistakes_with_experts() {
  using Scaling = RopeSpec::Scaling;
  static const std::vector<Mistake> table = {
      {"qwen3_moe", "weights not renormalised", [](auto& arch) { arch.moe.renormalise = false; }},
      {"qwen3_moe", "one expert fewer", [](auto& arch) { --arch.moe.top_k; }},
      {"qwen3_moe-fused", "weights renormalised", [](auto& arch) { arch.moe.renormalise = true; }},
      {"qwen3_moe-fused", "gate and up alternate", [](auto& arch) { arch.moe.interleaved = true; }},
      {"mixtral", "weights not renormalised", [](auto& arch) { arch.moe.renormalise = false; }},
      {"olmoe-clip", "nothing clipped", [](auto& arch) { arch.qkv_clip = 0.0; }},
      {"olmoe", "weights renormalised", [](auto& arch) { arch.moe.renormalise = true; }},
      {"qwen2_moe", "weights renormalised", [](auto& arch) { arch.moe.renormalise = true; }},
      {"gpt_oss", "softmax over all experts",
       [](auto& arch) { arch.moe.scores = RouterScores::kSoftmax; }},
      {"glm4_moe", "softmax for sigmoid",
       [](auto& arch) { arch.moe.scores = RouterScores::kSoftmax; }},
      {"glm4_moe", "weights not renormalised", [](auto& arch) { arch.moe.renormalise = false; }},
      {"glm4_moe", "weights not scaled", [](auto& arch) { arch.moe.weight_scale = 1.0; }},
      {"glm4_moe", "experts of every group", [](auto& arch) { arch.moe.kept_groups = 2; }},
      {"glm4_moe", "the whole head turns", [](auto& arch) { arch.rope.partial = 1.0; }},
      {"glm4_moe", "pairs for halves", [](auto& arch) { arch.rope.pairs = true; }},
      {"deepseek_v3", "halves for pairs", [](auto& arch) { arch.rope.pairs = false; }},
      {"deepseek_v3", "yarn's attention factor",
       [](auto& arch) { arch.rope.attention_factor = 1.0; }},
      {"deepseek_v3", "yarn's factor of scores",
       in_layers([](auto& layer) { layer.attention_scale = 1.0 / std::sqrt(10.0); })},
      {"deepseek_v3", "yarn's ramp", [](auto& arch) { arch.rope.scaling = Scaling::kLinear; }},
      {"deepseek_v3-plain", "pairs for halves", [](auto& arch) { arch.rope.pairs = true; }},
      {"glm4_moe-plain", "weights renormalised", [](auto& arch) { arch.moe.renormalise = true; }},
      {"gpt_oss", "gate, then up", [](auto& arch) { arch.moe.interleaved = false; }},
      {"gpt_oss", "the clamp", [](auto& arch) { arch.moe.clamp = 7.0; }},
      {"gpt_oss", "the gate's gain", [](auto& arch) { arch.moe.gate_gain = 1.0; }},
      {"gpt_oss", "odd layers slide",
       [](auto& arch) { std::swap(arch.layers[0], arch.layers[1]); }},
      {"gpt_oss", "yarn's ramp", [](auto& arch) { arch.rope.scaling = Scaling::kLinear; }},
  };
  return table;
}

at::Tensor logits_of(const GoldenCase& golden, const ArchSpec& arch) {
  const DecoderModel model(arch, make_model_spec(golden.arch, golden.file_tensors()));
  const PlainRunner runner(model, golden.weights, at::kFloat);
  std::vector<std::vector<int64_t>> rows;
  for (const size_t row : {0, 2, 6}) rows.push_back(golden.rows.at(row).tokens);
  return runner.logits(PlainRunner::make_batch(rows, rows));
}

void expect_seen(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    const GoldenCase golden = read_golden_case(mistake.golden);
    ArchSpec wrong = golden.arch;
    mistake.make(wrong);
    const at::Tensor right = logits_of(golden, golden.arch);
    const double change = ((logits_of(golden, wrong) - right).norm() / right.norm()).item<double>();
    EXPECT_GT(change, kLeastChange) << mistake.golden << ": " << mistake.what;
    testing::Test::RecordProperty(mistake.golden + ": " + mistake.what, std::to_string(change));
  }
}

// Every wrong switch in the table changes the logits.
TEST(Sensitivity, EveryWrongSwitchIsSeen) {
  expect_seen(mistakes());
  expect_seen(mistakes_of_gemma4());
  expect_seen(mistakes_with_sliding_rope());
  expect_seen(mistakes_with_delta_rule());
  expect_seen(mistakes_with_convolutions());
  expect_seen(mistakes_with_experts());
}

// Goal: a wrong order of rounding is detected in bf16; fp32 cannot show it.
TEST(Sensitivity, TheOrderOfRoundingIsSeenInBf16) {
  for (const std::string name : {"olmo2", "llama"}) {
    const GoldenCase golden = read_golden_case(name);
    ArchSpec wrong = golden.arch;
    wrong.norm = wrong.norm == NormKind::kRms ? NormKind::kRmsWide : NormKind::kRms;
    const auto bits = [&](const ArchSpec& arch) {
      const DecoderModel model(arch, make_model_spec(golden.arch, golden.file_tensors()));
      const std::vector<std::vector<int64_t>> rows = {golden.rows.at(0).tokens};
      return PlainRunner(model, golden.weights, at::kBFloat16)
          .logits(PlainRunner::make_batch(rows, rows));
    };
    EXPECT_FALSE(at::equal(bits(golden.arch), bits(wrong))) << name;
  }
}

// Goal: Gemma's embedding scale is rounded before it multiplies, as in transformers; the scale of
// the goldens is 4, which cannot show it.
TEST(Sensitivity, TheScaleOfEmbeddingsIsRoundedFirst) {
  const GoldenCase golden = read_golden_case("gemma2");
  ArchSpec arch = golden.arch;
  EXPECT_TRUE(arch.embedding_scale_rounded);
  arch.embedding_scale = std::sqrt(24.0);
  const std::vector<std::vector<int64_t>> rows = {golden.rows.at(0).tokens};
  const MicroBatch batch = PlainRunner::make_batch(rows, rows);
  for (const auto& [dtype, scale] : {std::pair(at::kFloat, 4.8989795), {at::kBFloat16, 4.90625}}) {
    const at::Tensor table = golden.weights.at("model.embed_tokens.weight").to(dtype);
    const std::vector<at::Tensor> parameters = {table};
    EXPECT_TRUE(at::equal(EmbeddingUnit(arch).forward(parameters, {}, batch).at(0),
                          table.index_select(0, batch.tokens) * scale))
        << dtype;
  }
}

}  // namespace
}  // namespace longshore
