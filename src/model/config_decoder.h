// Readers of config.json that several families share. Pure functions; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "model/arch_spec.h"
#include "model/config_reader.h"

namespace longshore {

inline constexpr int64_t kMostToken = (int64_t{1} << 31) - 1;
inline constexpr double kMostReal = 1e15;

void read_activation(ConfigReader& config, ConfigReader::Keys keys, std::string_view otherwise,
                     ArchSpec& arch);
void read_data_type(ConfigReader& config, ArchSpec& arch);
void read_tokens(ConfigReader& config, ArchSpec& arch);

// What a file may leave out; 0: it may not, or head_dim is hidden / heads.
struct SizeDefaults {
  int64_t vocabulary = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

// Keys that every family has: sizes, heads, tokens.
void read_sizes(ConfigReader& config, const SizeDefaults& defaults, ArchSpec& arch);

// 1 / sqrt(head_dim) in every layer.
void set_attention_scale(ArchSpec& arch);

// What all families but gpt2 have in common, the rotary embedding aside.
struct LlamaDefaults {
  int64_t positions = 2048;
  SizeDefaults sizes{};
  double norm_eps = 1e-6;
  bool tied = false;
};
void read_llama_like(ConfigReader& config, const LlamaDefaults& defaults, ArchSpec& arch);

// Biases of attention and, where the family has the key, of the MLP.
void read_biases(ConfigReader& config, bool attention, ArchSpec& arch);

// `windowed(i)` says which layers slide where `layer_types` does not say it.
void read_windows(ConfigReader& config, int64_t window, ArchSpec& arch,
                  const std::function<bool(int64_t)>& windowed);
// A sliding window in every layer, unless `layer_types` says otherwise. `absent`: where the file
// has no such key.
void read_window_of_all(ConfigReader& config, int64_t absent, ArchSpec& arch);
void read_qwen_windows(ConfigReader& config, ArchSpec& arch);

}  // namespace longshore
