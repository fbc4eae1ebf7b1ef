// New models: presets of architectures for `longshore init-model`, and random initial weights. Pure
// functions of the spec and the seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/texts.h"
#include "shard/unit_spec.h"

namespace longshore {

// random_init: values of `init = "random"`. They depend only on seed, tensor name and element, so
// any rank can make any part of any tensor. Pure functions, no LibTorch.

// Fills `values` with the tensor's elements from element_begin on. Normal values come from Philox
// (key: seed and name; counter: element / 4) by Box-Muller, uniform ones from the same generator.
void fill_random(std::string_view name, const InitSpec& init, uint64_t seed, int64_t element_begin,
                 std::span<float> values);

// init_presets: small model configurations that `longshore init-model` writes. Pure functions.

struct InitPreset {
  std::string name;     // "tiny-llama"
  std::string summary;  // one line that says what it is
};

// Returns presets/*.json: of each family, by model_type, an object of presets, each with its
// summary and its config.json, where null stands for what InitPresetOptions gives.
std::span<const NamedText> family_presets();

// Returns all presets, in the order of the files.
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
