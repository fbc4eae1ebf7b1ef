// config_decoder: readers of config.json that several families share. Pure functions; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/families/config_reader.h"

namespace longshore {

inline constexpr int64_t kMostToken = (int64_t{1} << 31) - 1;
inline constexpr double kMostReal = 1e15;

void read_activation(ConfigReader& config, ConfigReader::Keys keys, std::string_view otherwise,
                     ArchSpec& arch);
void read_data_type(ConfigReader& config, ArchSpec& arch);
void read_tokens(ConfigReader& config, ArchSpec& arch);

// Defaults for keys a file may omit; 0 means required, or head_dim = hidden / heads.
struct SizeDefaults {
  int64_t vocabulary = 0, heads = 0, kv_heads = 0, head_dim = 0, layers = 0;
};

// Reads the keys that every family has: sizes, heads, tokens.
void read_sizes(ConfigReader& config, const SizeDefaults& defaults, ArchSpec& arch);

// Sets 1 / sqrt(head_dim) in every layer.
void set_attention_scale(ArchSpec& arch);

// Defaults of the keys that all families but gpt2 share, except the rotary embedding.
struct LlamaDefaults {
  int64_t positions = 2048;
  SizeDefaults sizes{};
  double norm_eps = 1e-6;
  bool tied = false;
  int64_t intermediate = 0;  // 0 means required
};
void read_llama_like(ConfigReader& config, const LlamaDefaults& defaults, ArchSpec& arch);

// Reads the bias flags of attention and, if the family has that key, of the MLP.
void read_biases(ConfigReader& config, bool attention, ArchSpec& arch);

// Defaults of the keys that families with corrected experts share.
struct CorrectedDefaults {
  int64_t experts = 0, top_k = 0, width = 0, dense = 0, groups = 1, kept_groups = 1;
  double weight_scale = 1.0;
};
// Reads the experts of DeepSeek V3 and its followers: sigmoid scores, groups, a correction of the
// choice, no balance loss, and an expert for all tokens without a switch.
void read_corrected_experts(ConfigReader& config, const CorrectedDefaults& defaults,
                            ArchSpec& arch);

// Returns by layer whether `layer_types` calls it `special`, where the others are full attention;
// `otherwise(i)` decides if the file has no `layer_types`. Returns nullopt after a problem.
std::optional<std::vector<bool>> read_layer_types(ConfigReader& config, const ArchSpec& arch,
                                                  const std::string& special,
                                                  const std::function<bool(int64_t)>& otherwise);
// `windowed(i)` decides which layers have a window if the file has no `layer_types`.
void read_windows(ConfigReader& config, int64_t window, ArchSpec& arch,
                  const std::function<bool(int64_t)>& windowed);
// Returns the sliding window, or 0 for none, which files write as 0 or null. `absent` is the window
// if the file lacks the key.
int64_t read_window(ConfigReader& config, int64_t absent);
// Gives every layer a sliding window unless `layer_types` differs; `absent` is as above.
void read_window_of_all(ConfigReader& config, int64_t absent, ArchSpec& arch);
void read_qwen_windows(ConfigReader& config, ArchSpec& arch);

}  // namespace longshore
