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
  kRms,    // the normalised value is rounded to the compute dtype, then multiplied by the weight
  kLayer,  // mean removed; weight and bias in fp32, then rounded
};

enum class Activation : uint8_t { kSilu, kGeluTanh, kGeluErf, kRelu };

enum class PositionKind : uint8_t {
  kRope,     // rotary, half-split
  kLearned,  // a table added to the embedding
};

struct RopeSpec {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  // Of kLlama3.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 0;
};

// What may differ from block to block.
struct LayerSpec {
  int64_t window = 0;  // j is visible from i when i - window < j <= i; 0 = all earlier positions
  double attention_scale = 1.0;
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
  bool qk_norm = false;  // an RMS norm of every head's query and key before the rotation

  bool fused_qkv = false;           // one matrix for query, key and value
  bool transposed_weights = false;  // matrices are stored [in, out]
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;

  bool gated = true;
  Activation activation = Activation::kSilu;

  PositionKind position = PositionKind::kRope;
  RopeSpec rope;

  bool tied_by_config = false;
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
