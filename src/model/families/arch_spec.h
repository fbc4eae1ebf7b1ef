// ArchSpec: the switches that distinguish decoder families. families.h reads it from config.json;
// the decoder's units and the bounds of their memory use it. Plain values without LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/loss_kind.h"

namespace longshore {

enum class NormKind : uint8_t {
  kRms,        // rounds the normalised value to the compute dtype, then multiplies by the weight
  kRmsWide,    // multiplies by the weight in fp32, then rounds (OLMo 2)
  kRmsOffset,  // multiplies by 1 + weight in fp32, then rounds (Gemma)
  kLayer,      // subtracts the mean; weight and, if any, bias in fp32, then rounds
};

// The position of the norms around attention and MLP.
enum class NormPlacement : uint8_t {
  kBefore,  // h = x + f(norm(x))
  kAfter,   // h = x + norm(f(x)) (OLMo 2)
  kBoth,    // h = x + norm'(f(norm(x))) (Gemma 2 and 3)
  kShared,  // h = x + f(norm(x)) + g(norm(x)): attention and MLP read one norm of x (Cohere 2)
};

// The RMS norm of query and key before the rotation, over each head or over all heads.
enum class QueryKeyNorm : uint8_t {
  kNone,
  kHead,
  kHeadPlain,  // over each head, without weights (Muse Glimmer)
  kWidth,
};

enum class Activation : uint8_t { kSilu, kGeluTanh, kGeluErf, kRelu, kReluSquared };

enum class PositionKind : uint8_t {
  kRope,     // rotary, half-split
  kLearned,  // a table added to the embedding
};

struct RopeSpec {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLong };
  double theta = 10000.0;
  double partial = 1.0;  // share of each head that rotates, counted from its first value
  bool pairs = false;    // rotates neighbours together (GLM) instead of the halves
  double turning = 1.0;  // share of the rotating pairs that turn; the later ones never do (Gemma 4)
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  int64_t original_max_positions = 0;  // used by kLlama3, kYarn and kLong
  // Used by kLlama3.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // Used by kYarn.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool whole_dimensions = true;  // rounds the ramp's ends
  // Used by kYarn and kLong: multiplies cosine and sine.
  double attention_factor = 1.0;
  // Used by kLong: divisors of the frequencies, for documents up to the original length or longer.
  std::vector<double> short_factors, long_factors;

  int64_t rotary_dim(int64_t head_dim) const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  }
  // Returns how many of a head's rotating pairs turn.
  int64_t turning_pairs(int64_t head_dim) const {
    return static_cast<int64_t>(static_cast<double>(rotary_dim(head_dim)) * turning / 2.0);
  }
};

// The mixers: the parts of a layer that mix the positions of a document. Each row, ROW(value of
// MixerKind, name), also declares the mixer's functions, in model/parameters/mixer_parameters.h,
// model/mixers/mixer.h and trainer/verify/plain_mixers.h, and is its row in the tables beside them.
#define LONGSHORE_MIXERS(ROW)                                                          \
  ROW(kAttention, attention)                                                           \
  /* Gated DeltaNet, a recurrence with a state of constant size (arXiv:2412.06464). */ \
  ROW(kDelta, delta)                                                                   \
  /* Attention whose keys and values come from a narrow latent (arXiv:2405.04434). */  \
  ROW(kLatent, latent)                                                                 \
  /* A short causal convolution between two gates (LFM2). */                           \
  ROW(kConvolution, convolution)                                                       \
  /* Mamba-2, a recurrence with a state of constant size (arXiv:2405.21060). */        \
  ROW(kMamba, mamba)

#define LONGSHORE_MIXER(kind, name) kind,
enum class MixerKind : uint8_t { LONGSHORE_MIXERS(LONGSHORE_MIXER) };
#undef LONGSHORE_MIXER

// The sizes of gated DeltaNet. Consecutive value heads share a key head.
struct DeltaSpec {
  int64_t key_heads = 0, value_heads = 0;
  int64_t key_dim = 0, value_dim = 0;  // of a head
  int64_t taps = 0;                    // of the convolution over queries, keys and values
  // Two matrices replace four. Their rows go by key head: its query, its key, the values of its
  // value heads and their gates; likewise beta and decay.
  bool fused = false;

  int64_t key_width() const { return key_heads * key_dim; }
  int64_t value_width() const { return value_heads * value_dim; }
  // The width of queries, keys and values together.
  int64_t mixed_width() const { return 2 * key_width() + value_width(); }
};

// The sizes of latent attention. A head's query and key are a part without positions, then a part
// that rotates; all heads share the rotating part of the key.
struct LatentSpec {
  int64_t query_rank = 0;  // width of the queries' latent; 0: queries come from the input
  int64_t rank = 0;        // width of the latent of keys and values
  int64_t plain_dim = 0, rope_dim = 0, value_dim = 0;  // of a head

  int64_t key_dim() const { return plain_dim + rope_dim; }
};

// The sizes of the gated convolution; it has as many channels as the model is wide.
struct ConvolutionSpec {
  int64_t taps = 0;
  bool bias = false;  // of the convolution and of the matrices around it
};

// The sizes of Mamba-2. The heads of a group share keys (B) and queries (C).
struct MambaSpec {
  int64_t heads = 0, head_dim = 0;
  int64_t groups = 0;
  int64_t state = 0;  // width of a key and of a query
  int64_t taps = 0;   // of the convolution over values, keys and queries
  bool convolution_bias = false;
  bool bias = false;        // of the matrices
  double least_step = 0.0;  // a smaller step becomes this one, without a gradient

  int64_t inner_width() const { return heads * head_dim; }
  // The width of values, keys and queries together.
  int64_t mixed_width() const { return inner_width() + 2 * groups * state; }
};

// The settings that may differ between blocks.
struct LayerSpec {
  bool has_mixer = true;  // false: the layer is an MLP alone
  bool has_mlp = true;    // false: the layer is a mixer alone
  MixerKind mixer = MixerKind::kAttention;
  int64_t window = 0;  // j is visible from i when i - window < j <= i; 0 = all earlier positions
  double attention_scale = 1.0;
  bool rotates = true;      // false: the layer has no positions
  bool local_rope = false;  // uses ArchSpec::local_rope
  bool sparse = false;      // experts replace the MLP, or run beside it
  // The sizes of attention's heads where they differ from those of ArchSpec; 0: they do not.
  int64_t head_dim = 0, kv_heads = 0;
  int64_t intermediate = 0;      // of its MLP, likewise
  int64_t keys_of = -1;          // reads keys and values of this earlier layer; -1: it has its own
  bool values_are_keys = false;  // there is no matrix of values; keys before their norm replace it
};

// How a router's scores become weights.
enum class RouterScores : uint8_t {
  kSoftmax,          // the softmax over all experts
  kSoftmaxOfChosen,  // the softmax over the chosen ones alone
  kSigmoid,          // the sigmoid of each; scores and weights are fp32 whatever the compute dtype
};

// The experts of sparse layers and the router that chooses `top_k` of them for each token.
struct MoeSpec {
  int64_t experts = 0;  // 0: the family has none
  int64_t top_k = 0;
  int64_t width = 0;          // inner width of each expert
  int64_t latent = 0;         // the experts' inputs and outputs have this width; 0: the model's
  int64_t shared_width = 0;   // inner width of the expert that serves all tokens; 0: none
  bool shared_switch = true;  // the sigmoid of a product multiplies that expert's output
  RouterScores scores = RouterScores::kSoftmax;
  // A stored number is added to each score to choose experts, and not to their weights. It has no
  // gradient (arXiv:2412.19437).
  bool correction = false;
  double correction_rate = 0.0;  // each step moves the corrections by this; 0: they stay
  // Experts lie in groups of equal size. Only those of the `kept_groups` with the largest sum of
  // their two best scores can be chosen.
  int64_t groups = 1, kept_groups = 1;
  bool renormalise = false;     // scales the chosen weights to a sum of 1
  double weight_scale = 1.0;    // factor of the weights after that
  bool rounded_weights = true;  // rounds the weights to the compute dtype
  bool router_bias = false;
  bool expert_bias = false;
  bool transposed = false;   // an expert's matrices are stored [in, out]
  bool interleaved = false;  // rows of gate and up alternate, gate first; else gate, then up
  // If above 0, gate is at most this, up lies between minus and plus this, and the value is gate *
  // sigmoid(gate_gain * gate) * (up + 1).
  double clamp = 0.0;
  double gate_gain = 1.0;
  // The coefficient of the balance loss ([Note: balance loss]), 0: none; `watched` asks for
  // statistics of the routing.
  double balance = 0.0;
  bool watched = false;
  // The layer keeps its MLP. Experts run beside it; each branch has a norm before and after it, and
  // the router normalises the input by itself and scales the weights of each expert (Gemma 4).
  bool beside = false;
  // True: the files hold one tensor for all experts; false: one for each expert.
  bool fused = false;
};

// The modules of a decoder that have parameters.
enum class Module : uint8_t {
  kTokens,
  kPositions,
  kAttentionNorm,
  kAttentionPostNorm,
  kQuery,
  kKey,
  kValue,
  kQkv,
  kQueryNorm,
  kKeyNorm,
  kOutput,
  kMlpNorm,
  kMlpPostNorm,
  kGate,
  kUp,
  kGateUp,
  kDown,
  kLayerScale,  // without ".weight"
  // These make the inputs of layers; the first three are of all layers together.
  kInputTable,
  kInputProjection,
  kInputNorm,
  kInputGate,
  kInputOut,
  kInputPostNorm,
  kSinks,
  kAttentionGate,
  // These are of gated DeltaNet; the two after the convolution have no ".weight".
  kDeltaQkv,
  kDeltaGate,
  kDeltaBeta,
  kDeltaDecay,
  kDeltaQkvGate,  // these two are fused
  kDeltaBetaDecay,
  kDeltaConv,
  kDeltaRate,
  kDeltaStep,
  kDeltaNorm,
  kDeltaOutput,
  // These are of latent attention.
  kQueryDown,
  kQueryLatentNorm,
  kQueryUp,
  kLatentDown,
  kLatentNorm,
  kLatentUp,
  // These are of the gated convolution. The first gives both gates and the value between them.
  kConvolutionIn,
  kConvolutionTaps,
  kConvolutionOut,
  // These are of Mamba-2; the three after the convolution have no ".weight".
  kMambaIn,  // gives the gate, then values, keys and queries, then steps
  kMambaConv,
  kMambaRate,
  kMambaStep,
  kMambaSkip,
  kMambaNorm,
  kMambaOut,
  kRouter,
  kRouterCorrection,  // without ".weight"
  kExpertsIn,         // from the model's width to that of the experts, and back
  kExpertsOut,
  kExpertGate,  // one expert's matrices
  kExpertUp,
  kExpertDown,
  // All experts' matrices; these two have neither ".weight" nor ".bias". Without gates the first is
  // up alone.
  kExpertsGateUp,
  kExpertsDown,
  // These are of experts beside an MLP; the two of the router have no ".weight".
  kMlpInnerNorm,
  kExpertsNorm,
  kExpertsPostNorm,
  kRouterScale,
  kRouterExpertScale,
  kSharedGate,  // the expert that serves all tokens
  kSharedUp,
  kSharedDown,
  kSharedSwitch,
  kFinalNorm,
  kHead,
};
inline constexpr size_t kModuleCount = static_cast<size_t>(Module::kHead) + 1;

// The layer of the embedding and the head.
inline constexpr int64_t kNoLayer = -1;

// The low-rank adapters of a model (LoRA, arXiv:2106.09685). The output of a target is W x +
// scaling * B (A x), with A [rank, in] and B [out, rank], whatever the layout of W. With magnitudes
// (DoRA, arXiv:2402.09353) each output is also multiplied by its trained magnitude divided by the
// norm of its weights in W + scaling * B A. The adapter of all experts' matrices of a layer is one
// parameter, A [experts, rank, in] and B [experts, out, rank]; it has gate and up as one matrix.
struct AdapterSpec {
  struct Size {
    int64_t rank = 0;
    double alpha = 0.0;
    double scaling = 1.0;  // alpha / rank, or alpha / sqrt(rank) with rsLoRA
    bool operator==(const Size&) const = default;
  };
  bool magnitudes = false;
  double dropout = 0.0;  // the share of x that training drops before A (InputDropout)
  // By the layer and the module of each adapted matrix; empty: the model has no adapters. The
  // embedding's A is [vocabulary, rank].
  std::map<std::pair<int64_t, Module>, Size> targets;

  bool adapts(int64_t layer, Module module) const { return targets.contains({layer, module}); }
  // The matrix must have an adapter.
  const Size& size_of(int64_t layer, Module module) const { return targets.at({layer, module}); }
};

struct ArchSpec {
  std::string family;  // model_type of config.json
  std::string origin;  // file it was read from, for messages

  int64_t vocabulary = 0;
  int64_t added_tokens = 0;  // the last rows of the vocabulary, which the model's files lack
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;  // a hard limit for kLearned, else the length it was trained for
  std::vector<LayerSpec> layers;

  NormKind norm = NormKind::kRms;
  bool norm_bias = true;  // norms of kLayer have a bias
  double norm_eps = 1e-6;
  std::optional<double> post_norm_eps;  // of norms behind attention and MLP; none: norm_eps
  std::optional<NormKind> final_norm;   // kind of the norm before the head; none: norm
  bool embedding_norm = false;          // divides the embedding's rows by their root mean square
  NormPlacement norm_placement = NormPlacement::kBefore;
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  bool qk_norm_after_rope = false;
  // Limits the values of queries, keys and value heads to -clip .. clip before the rope; 0 means
  // none (OLMoE).
  double qkv_clip = 0.0;
  bool value_norm = false;  // each head's value has an RMS norm without weight (Gemma 4)
  bool sinks = false;       // each head has one more score, which takes weight and adds no value
  // Attention's result is multiplied by the sigmoid of a gate. The matrix of the queries holds
  // both: each head's rows of the query, then those of the gate. Or the gate has its own matrix.
  bool output_gate = false;
  bool own_gate_matrix = false;
  DeltaSpec delta;              // used by layers with MixerKind::kDelta
  LatentSpec latent;            // used by layers with MixerKind::kLatent
  ConvolutionSpec convolution;  // used by layers with MixerKind::kConvolution
  MambaSpec mamba;              // used by layers with MixerKind::kMamba
  MoeSpec moe;                  // used by sparse layers
  AdapterSpec adapter;

  // Multipliers (Granite, Gemma); 1 means none.
  double embedding_scale = 1.0;
  bool embedding_scale_rounded = false;  // rounds the scale to the compute dtype before use
  double residual_scale = 1.0;           // factor of the outputs of attention and MLP
  // Each layer adds a gated input of its own behind its MLP (Gemma 4 E2B, E4B). It has this width
  // and comes from the embedding and from a second table of tokens; 0 means none.
  int64_t layer_input = 0;
  int64_t layer_input_rows = 0;  // of the second table
  bool layer_scale = false;  // a stored number, which no run trains, multiplies a block's output
  double logit_divisor = 1.0;
  // Caps (Gemma 2): x becomes cap * tanh(x / cap); 0 means none.
  double score_cap = 0.0;  // caps attention scores before the softmax
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
  RopeSpec local_rope;  // used by layers with local_rope
  // Multiplies queries by 1 + beta * log(1 + floor(position / positions)); 0 means off.
  double query_growth_beta = 0.0;
  int64_t query_growth_positions = 1;

  bool tied_by_config = false;
  bool tied_by_files = false;       // config.json does not say; tied if the files hold no head
  std::optional<DType> dtype;       // dtype of the weights in config.json
  double initializer_range = 0.02;  // used by init = "random"
  // Scales the initial standard deviation of matrices that write into the residual stream.
  double residual_init_scale = 1.0;

  // One line for each group of settings of config.json that no run follows, such as dropout.
  std::vector<std::string> config_notes;
  // Keys of config.json that are not read and that may have an effect in other programs.
  std::vector<std::string> unread_keys;
  // Keys that the family reads and config.json lacks, so that they have their defaults.
  std::set<std::string> absent_keys;

  std::optional<DistillOptions> distill;  // of a run with train.loss = "distill"

  // Tokens that stand for pictures, video or sound in a wrapper and whose embedding, in a text, is
  // that of another token.
  std::map<int64_t, int64_t> read_as;
  std::vector<int64_t> eos_tokens;  // one or more ids that end a text
  std::optional<int64_t> bos_token;
  std::optional<int64_t> pad_token;

  NormKind final_norm_kind() const { return final_norm.value_or(norm); }
  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
  // Returns the width of the experts' inputs and outputs.
  int64_t experts_hidden() const { return moe.latent > 0 ? moe.latent : hidden; }
  // Returns the elements of one expert's matrices.
  int64_t expert_elements() const { return (gated ? 3 : 2) * experts_hidden() * moe.width; }
  // Returns these settings with the sizes of the layer's heads.
  ArchSpec of_layer(const LayerSpec& layer) const {
    ArchSpec own = *this;
    if (layer.head_dim > 0) own.head_dim = layer.head_dim;
    if (layer.kv_heads > 0) own.kv_heads = layer.kv_heads;
    if (layer.intermediate > 0) own.intermediate = layer.intermediate;
    return own;
  }
  // Returns the longest text that rotates by the factors of short ones, if the family has others
  // for longer texts.
  std::optional<int64_t> restart_length() const {
    std::optional<int64_t> shortest;
    for (const RopeSpec* own : {&rope, &local_rope}) {
      if (own->scaling != RopeSpec::Scaling::kLong) continue;
      shortest =
          std::min(shortest.value_or(own->original_max_positions), own->original_max_positions);
    }
    return shortest;
  }
  // Returns the width of the inputs of all layers.
  int64_t layer_inputs_width() const { return layer_count() * layer_input; }
  // Returns the number of units before the first block, without cuts.
  int64_t units_before_blocks() const { return layer_input > 0 ? 3 : 1; }
  // Returns whether later layers read the layer's keys and values.
  bool gives_keys(int64_t layer) const {
    for (const LayerSpec& later : layers) {
      if (later.keys_of == layer) return true;
    }
    return false;
  }
  // Returns the layers up to this one whose keys and values later layers read, in order.
  std::vector<int64_t> keys_behind(int64_t layer) const {
    std::set<int64_t> sources;
    for (int64_t later = layer + 1; later < layer_count(); ++later) {
      const int64_t source = layers[static_cast<size_t>(later)].keys_of;
      if (source >= 0 && source <= layer) sources.insert(source);
    }
    return {sources.begin(), sources.end()};
  }
};

}  // namespace longshore
