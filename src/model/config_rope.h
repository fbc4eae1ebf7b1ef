// ConfigRope: the rotary embedding that a config.json describes, in the spellings of transformers 4
// (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`). Internal to families.cpp. Pure
// functions.
#pragma once

#include <string_view>

#include "model/arch_spec.h"
#include "model/config_reader.h"

namespace longshore {

// What a family makes of the keys.
struct RopeRules {
  double theta = 10000.0;  // where the file says nothing
  double share = 1.0;      // of each head that turns, where the file says nothing
  bool partial = false;    // a share of each head may turn
  bool alpha = false;      // "dynamic" with a fixed alpha stretches theta (HunYuan)
  bool longrope = false;   // and factors for long documents; "su" and "yarn" mean them too
};

// Of all layers. Problems go to `config`.
void read_rope(ConfigReader& config, const RopeRules& rules, ArchSpec& arch);

// Of layers that see everything, and of those with a window. `rope_theta` and `rope_scaling` are of
// the former; `sliding_theta_key`, where it is not empty, is transformers 4's for the latter.
void read_rope_by_layer_type(ConfigReader& config, double full_theta, double sliding_theta,
                             std::string_view sliding_theta_key, ArchSpec& arch);

}  // namespace longshore
