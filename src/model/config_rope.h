// config_rope: reads the rotary embedding of a config.json in the spellings of transformers 4
// (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`). Used by families' readers. Pure
// functions.
#pragma once

#include <string_view>

#include "model/arch_spec.h"
#include "model/config_reader.h"

namespace longshore {

// A family's rules for the keys.
struct RopeRules {
  double theta = 10000.0;  // default if the file has none
  double share = 1.0;      // default share of each head that rotates
  bool partial = false;    // the file may set that share
  bool alpha = false;      // "dynamic" with a fixed alpha stretches theta (HunYuan)
  bool longrope = false;   // allows factors for long documents; "su" and "yarn" then mean longrope
};

// Reads one embedding for all layers. Problems go to `config`.
void read_rope(ConfigReader& config, const RopeRules& rules, ArchSpec& arch);

// Reads one embedding for full and one for sliding layers. `rope_theta` and `rope_scaling` are of
// full layers; `sliding_theta_key`, unless empty, is transformers 4's key for sliding ones.
void read_rope_by_layer_type(ConfigReader& config, double full_theta, double sliding_theta,
                             std::string_view sliding_theta_key, ArchSpec& arch);

}  // namespace longshore
