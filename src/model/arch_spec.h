// ArchSpec: the switches that tell one decoder family from another. Read from config.json by
// families.h, used by the decoder's units and by the bounds of their memory. Plain values without
// LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace longshore {

enum class NormKind : uint8_t {
  kRms,      // the normalised value is rounded to the compute dtype, then multiplied by the weight
  kRmsWide,  // multiplied by the weight in fp32, then rounded (OLMo 2)
  kRmsOffset,  // multiplied by 1 + weight in fp32, then rounded (Gemma)
  kLayer,      // mean removed; weight and bias in fp32, then rounded
};

// Where the norms of attention and MLP are.
enum class NormPlacement : uint8_t {
  kBefore,  // h = x + f(norm(x))
  kAfter,   // h = x + norm(f(x)) (OLMo 2)
  kBoth,    // h = x + norm'(f(norm(x))) (Gemma 2 and 3)
};

// An RMS norm of query and key before the rotation.
enum class QueryKeyNorm : uint8_t { kNone, kHead, kWidth };

enum class Activation : uint8_t { kSilu, kGeluTanh, kGeluErf, kRelu };

enum class PositionKind : uint8_t {
  kRope,     // rotary, half-split
  kLearned,  // a table added to the embedding
};

struct RopeSpec {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLong };
  double theta = 10000.0;
  double partial = 1.0;  // the share of each head that turns, from its first value on
  bool pairs = false;    // neighbours turn together (GLM), not the halves
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  int64_t original_max_positions = 0;  // of kLlama3, kYarn and kLong
  // Of kLlama3.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // Of kYarn.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool whole_dimensions = true;  // the ramp's ends are rounded
  // Of kYarn and kLong: times cosine and sine.
  double attention_factor = 1.0;
  // Of kLong, one divisor for each frequency: in documents up to the original length, and longer.
  std::vector<double> short_factors, long_factors;

  int64_t rotary_dim(int64_t head_dim) const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  }
};

// What may differ from block to block.
struct LayerSpec {
  int64_t window = 0;  // j is visible from i when i - window < j <= i; 0 = all earlier positions
  double attention_scale = 1.0;
  bool rotates = true;      // false: no positions in this layer
  bool local_rope = false;  // ArchSpec::local_rope serves
  bool sparse = false;      // experts take the place of the MLP
};

// The experts of sparse layers, and the router that chooses `top_k` of them for each token.
struct MoeSpec {
  int64_t experts = 0;  // 0: the family has none
  int64_t top_k = 0;
  int64_t width = 0;         // of each expert
  int64_t shared_width = 0;  // of an expert that serves all tokens, by a gate of its own; 0: none
  // The router's scores become weights: softmax over all experts, or over the chosen ones alone.
  bool softmax_over_all = true;
  bool renormalise = false;     // the chosen weights to a sum of 1
  bool rounded_weights = true;  // to the compute dtype
  bool router_bias = false;
  bool expert_bias = false;
  bool transposed = false;   // an expert's matrices are stored [in, out]
  bool interleaved = false;  // rows of gate and up alternate, gate first; else gate, then up
  // Above 0: gate is at most this, up between minus and plus this, and the value is
  // gate * sigmoid(gate_gain * gate) * (up + 1).
  double clamp = 0.0;
  double gate_gain = 1.0;
  // The coefficient of the loss that balances experts ([Note: balance loss]), 0: none; and whether
  // figures of the routing are asked for.
  double balance = 0.0;
  bool watched = false;
  // How the files hold them: one tensor for all experts, or one for each.
  bool fused = false;
};

struct ArchSpec {
  std::string family;  // model_type
  std::string origin;  // the file it was read from, for messages

  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;  // a hard limit for kLearned, what the model was made for otherwise
  std::vector<LayerSpec> layers;

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  NormPlacement norm_placement = NormPlacement::kBefore;
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  bool qk_norm_after_rope = false;
  bool sinks = false;  // each head has one more score, which takes weight and gives no value
  MoeSpec moe;         // of layers that say so

  // Multipliers (Granite, Gemma); 1 = none.
  double embedding_scale = 1.0;
  bool embedding_scale_rounded = false;  // to the compute dtype before it is used
  double residual_scale = 1.0;           // of what attention and MLP add
  double logit_divisor = 1.0;
  // Caps (Gemma 2): x becomes cap * tanh(x / cap); 0 = none.
  double score_cap = 0.0;  // of attention, before the softmax
  double logit_cap = 0.0;

  bool fused_qkv = false;           // one matrix for query, key and value
  bool fused_gate_up = false;       // one matrix for gate and up
  bool transposed_weights = false;  // matrices are stored [in, out]
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;

  bool gated = true;
  Activation activation = Activation::kSilu;

  PositionKind position = PositionKind::kRope;
  RopeSpec rope;
  RopeSpec local_rope;  // of layers that say so
  // Queries grow with the position: times 1 + beta * log(1 + floor(position / positions)); 0 = not.
  double query_growth_beta = 0.0;
  int64_t query_growth_positions = 1;

  bool tied_by_config = false;
  bool tied_by_files = false;       // config.json does not say: tied where the files hold no head
  std::optional<DType> dtype;       // what config.json says about the weights' type
  double initializer_range = 0.02;  // of init = "random"
  // Scales the initial standard deviation of matrices that write into the residual stream.
  double residual_init_scale = 1.0;

  std::vector<int64_t> eos_tokens;  // one or more ids that end a text
  std::optional<int64_t> bos_token;
  std::optional<int64_t> pad_token;

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
};

}  // namespace longshore
