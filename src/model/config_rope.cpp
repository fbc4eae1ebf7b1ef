#include "model/config_rope.h"

#include <cmath>
#include <string>

namespace longshore {
namespace {

constexpr double kMostTheta = 1e15;
constexpr double kMostFactor = 1e6;

constexpr const char* kKinds = "default, linear, llama3, yarn";

void read_llama3(ConfigReader& rope, RopeSpec& spec) {
  spec.scaling = RopeSpec::Scaling::kLlama3;
  spec.low_freq_factor = rope.real({"low_freq_factor"}, 1e-3, kMostFactor).value_or(1.0);
  spec.high_freq_factor = rope.real({"high_freq_factor"}, 1e-3, kMostFactor).value_or(4.0);
  if (spec.high_freq_factor <= spec.low_freq_factor) {
    rope.problem("high_freq_factor", "must be greater than low_freq_factor");
  }
}

// The factor of the YaRN paper; `mscale` generalises it as DeepSeek does.
double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void read_yarn(ConfigReader& rope, RopeSpec& spec) {
  spec.scaling = RopeSpec::Scaling::kYarn;
  spec.beta_fast = rope.real({"beta_fast"}, 1e-3, kMostFactor).value_or(32.0);
  spec.beta_slow = rope.real({"beta_slow"}, 1e-3, kMostFactor).value_or(1.0);
  spec.whole_dimensions = rope.boolean({"truncate"}).value_or(true);
  const double own = rope.real({"mscale"}, 0.0, kMostFactor).value_or(0.0);
  const double all = rope.real({"mscale_all_dim"}, 0.0, kMostFactor).value_or(0.0);
  const double otherwise = own != 0.0 && all != 0.0 ? yarn_attention_factor(spec.factor, own) /
                                                          yarn_attention_factor(spec.factor, all)
                                                    : yarn_attention_factor(spec.factor, 1.0);
  spec.attention_factor = rope.real({"attention_factor"}, 1e-6, kMostFactor).value_or(otherwise);
}

std::vector<double> read_factors(ConfigReader& rope, std::string_view key, int64_t count) {
  std::vector<double> factors = rope.reals({key}, 1e-6, kMostFactor);
  if (static_cast<int64_t>(factors.size()) != count) {
    rope.problem(key, "must be a list of " + std::to_string(count) + " numbers");
    factors.assign(static_cast<size_t>(count), 1.0);
  }
  return factors;
}

void read_long(ConfigReader& rope, int64_t head_dim, RopeSpec& spec) {
  spec.scaling = RopeSpec::Scaling::kLong;
  const int64_t count = spec.rotary_dim(head_dim) / 2;
  spec.short_factors = read_factors(rope, "short_factor", count);
  spec.long_factors = read_factors(rope, "long_factor", count);
  const auto original = static_cast<double>(spec.original_max_positions);
  const double otherwise =
      spec.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(spec.factor) / std::log(original));
  spec.attention_factor = rope.real({"attention_factor"}, 1e-6, kMostFactor).value_or(otherwise);
}

void read_scaling(ConfigReader& outer, ConfigReader& rope, const RopeRules& rules,
                  const ArchSpec& arch, RopeSpec& spec) {
  std::string kind = rope.text({"rope_type", "type"}).value_or("default");
  if (rules.longrope && (kind == "su" || kind == "yarn")) kind = "longrope";
  if (kind == "default") return;
  // A key outside the scaling object wins over the one inside, as in transformers.
  const int64_t inside = rope.size_or({"original_max_position_embeddings"}, arch.max_positions);
  spec.original_max_positions = outer.size_or({"original_max_position_embeddings"}, inside);
  const double alpha = rules.alpha ? rope.real({"alpha"}, 0.0, kMostFactor).value_or(0.0) : 0.0;
  if (kind == "dynamic" && alpha > 0.0) {
    const auto dim = static_cast<double>(arch.head_dim);
    spec.theta *= std::pow(alpha, dim / (dim - 2.0));
    return;
  }
  const bool long_kind = kind == "longrope" && rules.longrope;
  const double otherwise =
      static_cast<double>(arch.max_positions) / static_cast<double>(spec.original_max_positions);
  const auto factor = rope.real({"factor"}, 1e-3, kMostFactor);
  const bool by_length = long_kind || kind == "yarn";
  if (!factor && !by_length) rope.problem("factor", "is needed for rope type '" + kind + "'");
  spec.factor = factor.value_or(by_length ? otherwise : 1.0);
  if (kind == "linear") {
    spec.scaling = RopeSpec::Scaling::kLinear;
  } else if (kind == "llama3") {
    read_llama3(rope, spec);
  } else if (kind == "yarn") {
    read_yarn(rope, spec);
  } else if (long_kind) {
    read_long(rope, arch.head_dim, spec);
  } else if (kind == "dynamic") {
    rope.problem("rope_type",
                 "= 'dynamic' grows with the length of each text, which no training can follow; "
                 "set 'linear' or 'yarn' with a factor");
  } else {
    rope.problem("rope_type", "= '" + kind + "' is not supported; supported: " + kKinds);
  }
}

// Reads the rotary share, which a file may give at the top level or in the scaling object.
void read_partial(ConfigReader& reader, const RopeRules& rules, int64_t head_dim, RopeSpec& spec) {
  spec.partial = reader.real({"partial_rotary_factor"}, 0.0, 1.0).value_or(spec.partial);
  if (spec.partial != 1.0 && !rules.partial) {
    reader.problem("partial_rotary_factor", "other than 1 is not supported");
  }
  const int64_t turned = spec.rotary_dim(head_dim);
  if (turned % 2 != 0 || turned == 0) {
    reader.problem("head_dim", "= " + std::to_string(head_dim) + " gives " +
                                   std::to_string(turned) + " rotary values; they must be even");
    spec.partial = 1.0;
  }
}

void check_head_dim(ConfigReader& config, const ArchSpec& arch) {
  if (arch.head_dim % 2 != 0) {
    config.problem("head_dim", "= " + std::to_string(arch.head_dim) + " must be even");
  }
}

void read_one(ConfigReader& config, const Json& object, const std::string& name,
              const RopeRules& rules, const ArchSpec& arch, RopeSpec& spec) {
  ConfigReader rope(object, config.path() + ": " + name);
  spec.theta = rope.real({"rope_theta"}, 1.0, kMostTheta).value_or(spec.theta);
  if (arch.head_dim % 2 == 0) read_partial(rope, rules, arch.head_dim, spec);
  read_scaling(config, rope, rules, arch, spec);
  config.take_problems(rope);
}

}  // namespace

void read_rope(ConfigReader& config, const RopeRules& rules, ArchSpec& arch) {
  arch.position = PositionKind::kRope;
  check_head_dim(config, arch);
  arch.rope.partial = rules.share;
  arch.rope.theta = config.real({"rope_theta"}, 1.0, kMostTheta).value_or(rules.theta);
  if (arch.head_dim % 2 == 0) read_partial(config, rules, arch.head_dim, arch.rope);
  const Json* scaling = config.find({"rope_scaling", "rope_parameters"});
  if (scaling == nullptr) return;
  if (!scaling->is_object()) {
    config.problem("rope_parameters", "must be an object");
    return;
  }
  for (const auto& [key, value] : scaling->items()) {
    if (value.is_object())
      config.problem("rope_parameters", "'" + key + "': not for each kind of layer");
  }
  read_one(config, *scaling, "rope_parameters", rules, arch, arch.rope);
}

void read_rope_by_layer_type(ConfigReader& config, double full_theta, double sliding_theta,
                             std::string_view sliding_theta_key, ArchSpec& arch) {
  arch.position = PositionKind::kRope;
  check_head_dim(config, arch);
  arch.rope.theta = config.real({"rope_theta"}, 1.0, kMostTheta).value_or(full_theta);
  arch.local_rope.theta = sliding_theta;
  if (!sliding_theta_key.empty()) {
    arch.local_rope.theta =
        config.real({sliding_theta_key}, 1.0, kMostTheta).value_or(sliding_theta);
  }
  const RopeRules rules;
  const Json* old = config.find({"rope_scaling"});
  if (old != nullptr && old->is_object()) {
    read_one(config, *old, "rope_scaling", rules, arch, arch.rope);
  }
  const Json* by_type = config.find({"rope_parameters"});
  if (by_type == nullptr) return;
  if (!by_type->is_object()) {
    config.problem("rope_parameters", "must be an object");
    return;
  }
  for (const auto& [key, value] : by_type->items()) {
    if (!value.is_object()) continue;
    const bool full = key == "full_attention";
    if (!full && key != "sliding_attention") {
      config.problem("rope_parameters", "has no layers of type '" + key + "'");
      continue;
    }
    read_one(config, value, "rope_parameters." + key, rules, arch,
             full ? arch.rope : arch.local_rope);
  }
}

}  // namespace longshore
