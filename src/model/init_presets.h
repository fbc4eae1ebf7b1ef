// init_presets: small model configurations that `longshore init-model` writes. Pure functions.
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

// Returns all presets, in the order of the help text.
const std::vector<InitPreset>& init_presets();

// The values that a preset leaves open.
struct InitPresetOptions {
  int64_t vocabulary = 0;  // >= 1
  int64_t eos_token = -1;  // -1: none
  int64_t bos_token = -1;
  int64_t pad_token = -1;
};

// Returns config.json as transformers 5 writes and reads it. Throws ConfigError for an unknown name
// and suggests the nearest one.
std::string init_preset_config(std::string_view name, const InitPresetOptions& options);

}  // namespace longshore
