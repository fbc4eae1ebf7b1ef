// Init presets: small model configurations that `longshore init-model` writes. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

struct InitPreset {
  std::string_view name;     // "tiny-llama"
  std::string_view summary;  // one line for --help
};

// All presets, in the order of help.
const std::vector<InitPreset>& init_presets();

// What a preset leaves open.
struct InitPresetOptions {
  int64_t vocabulary = 0;  // >= 1
  int64_t eos_token = -1;  // -1: none
  int64_t bos_token = -1;
  int64_t pad_token = -1;
};

// The text of config.json, as transformers 5 writes and reads it. ConfigError for an unknown name,
// with the nearest one.
std::string init_preset_config(std::string_view name, const InitPresetOptions& options);

}  // namespace longshore
