#include "model/families/config_reader.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;

bool contains(std::string_view key, std::string_view part) {
  return key.find(part) != std::string_view::npos;
}

// Keys with these names configure experts. They mean nothing to a model that has one MLP a layer.
bool configures_experts(std::string_view key) {
  return contains(key, "expert") || key.starts_with("moe_") || key.starts_with("router_") ||
         key == "first_k_dense_replace";
}

// Keys with these names scale a tensor, so a value of 1 changes nothing.
bool scales(std::string_view key) {
  for (std::string_view whole : {"logit_scale", "scale_emb", "embedding_scale", "residual_scale"}) {
    if (key == whole) return true;
  }
  return contains(key, "multiplier") || key.ends_with("_scaling");
}

// Keys with these names change a model's numbers in every family, so they must not be ignored.
bool changes_numbers(std::string_view key) {
  for (std::string_view whole :
       {"quantization_config", "qk_norm", "use_qk_norm", "qk_layernorm", "clip_qkv", "alibi",
        "use_alibi", "parallel_attn", "use_parallel_residual", "no_rope_layers",
        "no_rope_layer_interval", "query_pre_attn_scalar", "scale_depth", "kv_lora_rank",
        "q_lora_rank", "per_layer_config"}) {
    if (key == whole) return true;
  }
  return contains(key, "softcap") || scales(key) || configures_experts(key);
}

// Keys that transformers' classes have and that change no number of training, by the reason.
constexpr std::string_view kWithoutEffect[] = {
    "initial_context_length",
    // Families whose model has them read them; elsewhere, and at the top of a wrapper, nothing
    // does.
    "sliding_window", "rope_theta", "initializer_range",
    // Nemotron H has them for layers of experts, and reads them if there are any.
    "n_group", "norm_topk_prob", "routed_scaling_factor", "topk_group",
    // They name the model, its files and the program that wrote them.
    "architectures", "auto_map", "_name_or_path", "name_or_path", "_commit_hash",
    "transformers_version", "model_type",
    // They say which outputs a call returns, or configure heads of other tasks.
    "output_hidden_states", "output_attentions", "return_dict", "problem_type", "id2label",
    "label2id", "num_labels", "summary_activation", "summary_first_dropout", "summary_last_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "classifier_dropout",
    "token_classification_bias",
    // The loss of balance is a key of the run file (train.router_aux_loss).
    "output_router_logits", "router_aux_loss_coef",
    // They are about generation and its cache.
    "use_cache", "cache_implementation", "num_logits_to_keep", "eod_token_id",
    "mamba_ssm_cache_dtype",
    // They choose among computations of the same values.
    "attn_implementation", "_attn_implementation", "experts_implementation", "pretraining_tp",
    "chunk_size_feed_forward", "chunk_size", "mamba_chunk_size", "use_mamba_kernels",
    "moe_shared_expert_overlap", "residual_in_fp32", "reorder_and_upcast_attn",
    // They shape the random weights of a new model alone.
    "rescale_prenorm_residual", "time_step_max", "time_step_floor", "mamba_dt_max",
    "mamba_dt_init_floor",
    // transformers has them in the class, and the family's model does not read them.
    "is_encoder_decoder", "time_step_limit", "mamba_dt_limit", "expand", "mamba_expand",
    "mamba_proj_bias", "attention_chunk_size", "max_window_layers",
    // The layers that predict further tokens are not trained (a note says so).
    "num_mtp_layers", "num_nextn_predict_layers", "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
    // The other towers of a wrapper, which stay unchanged, and the tokens that stand for their
    // inputs.
    "vision_config", "audio_config", "projector_hidden_act", "projector_hidden_size",
    "out_hidden_size", "multimodal_projector_bias", "spatial_merge_size", "vision_feature_layer",
    "mm_tokens_per_image", "image_token_id", "image_token_index", "video_token_id",
    "audio_token_id", "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index",
    "boa_token_id", "eoa_token_index", "vision_start_token_id", "vision_end_token_id"};

// Keys of dropout that transformers' models apply while they are trained.
bool is_dropout(std::string_view key) {
  return contains(key, "dropout") || key.ends_with("pdrop") || contains(key, "drop_path");
}

// True for the values that mean "off" in files of models without that feature.
bool is_off(std::string_view key, const Json& value) {
  return value.is_null() || value == false || value == 0 ||
         (value.is_structured() && value.empty()) || (scales(key) && value == 1);
}

// True if the file says that a layer has several experts to choose from, in any spelling.
bool has_experts(const Json& config) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts",
                          "moe_num_experts", "moe_num_primary_experts"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null() || it->is_boolean()) continue;
    if (!it->is_number() || *it > 1) return true;
  }
  return false;
}

std::string shown(const Json& value) {
  std::string text = json_text(value);
  constexpr size_t kMost = 60;
  if (text.size() > kMost) {
    text.resize(kMost);
    text += "...";
  }
  return text;
}

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

void read_proportional(ConfigReader& rope, RopeSpec& spec) {
  spec.turning = rope.real({"partial_rotary_factor"}, 0.0, 1.0).value_or(1.0);
  spec.factor = rope.real({"factor"}, 1e-3, kMostFactor).value_or(1.0);
  if (spec.factor != 1.0) spec.scaling = RopeSpec::Scaling::kLinear;
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
  if (rules.proportional && rope.text({"rope_type"}) == "proportional") {
    read_proportional(rope, spec);
  } else {
    if (arch.head_dim % 2 == 0) read_partial(rope, rules, arch.head_dim, spec);
    read_scaling(config, rope, rules, arch, spec);
  }
  config.take_problems(rope);
}

}  // namespace

ConfigReader::ConfigReader(const Json& config, std::string path)
    : object_(&config), path_(std::move(path)) {
  if (!config.is_object()) throw ConfigError(path_ + ": not a JSON object");
}

void ConfigReader::problem(std::string_view key, const std::string& what) {
  problems_.push_back(path_ + ": '" + std::string(key) + "' " + what);
}

bool ConfigReader::has(std::string_view key) const {
  return object_->contains(std::string(key));
}

std::string ConfigReader::shown_name(Keys keys) const {
  for (std::string_view key : keys) {
    if (has(key)) return std::string(key);
  }
  return std::string(*keys.begin());
}

const Json* ConfigReader::find(Keys keys) {
  const Json* found = nullptr;
  for (std::string_view key : keys) {
    known_.emplace(key);
    if (found != nullptr) continue;
    const auto it = object_->find(std::string(key));
    if (it != object_->end() && !it->is_null()) found = &*it;
  }
  return found;
}

std::optional<int64_t> ConfigReader::integer(Keys keys, int64_t least, int64_t most) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    problem(shown_name(keys), "must be an integer in " + std::to_string(least) + " .. " +
                                  std::to_string(most) + ", not " + shown(*value));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

std::optional<double> ConfigReader::real(Keys keys, double least, double most) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    std::ostringstream bounds;
    bounds << least << " .. " << most;
    problem(shown_name(keys), "must be a number in " + bounds.str() + ", not " + shown(*value));
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> ConfigReader::boolean(Keys keys) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    problem(shown_name(keys), "must be true or false, not " + shown(*value));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::text(Keys keys) {
  const Json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    problem(shown_name(keys), "must be a string, not " + shown(*value));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::vector<int64_t> ConfigReader::integers(Keys keys, int64_t least, int64_t most) {
  const Json* value = find(keys);
  if (value == nullptr) return {};
  std::vector<int64_t> numbers;
  if (!value->is_array()) {
    const auto one = integer(keys, least, most);
    if (one) numbers.push_back(*one);
    return numbers;
  }
  for (const Json& item : *value) {
    if (!item.is_number_integer() || item.get<int64_t>() < least || item.get<int64_t>() > most) {
      problem(shown_name(keys), "must hold integers in " + std::to_string(least) + " .. " +
                                    std::to_string(most) + ", not " + shown(item));
      return {};
    }
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

std::vector<double> ConfigReader::reals(Keys keys, double least, double most) {
  const Json* value = find(keys);
  if (value == nullptr) return {};
  std::vector<double> numbers;
  for (const Json& item : value->is_array() ? *value : Json::array()) {
    const bool fits = item.is_number() && item.get<double>() >= least && item.get<double>() <= most;
    if (!fits) break;
    numbers.push_back(item.get<double>());
  }
  if (!value->is_array() || numbers.size() != value->size()) {
    std::ostringstream bounds;
    bounds << least << " .. " << most;
    problem(shown_name(keys), "must be a list of numbers in " + bounds.str());
    return {};
  }
  return numbers;
}

std::vector<std::string> ConfigReader::texts(Keys keys) {
  const Json* value = find(keys);
  if (value == nullptr) return {};
  std::vector<std::string> items;
  bool all_text = value->is_array();
  if (all_text) {
    for (const Json& item : *value) all_text = all_text && item.is_string();
  }
  if (!all_text) {
    problem(shown_name(keys), "must be a list of strings, not " + shown(*value));
    return {};
  }
  for (const Json& item : *value) items.push_back(item.get<std::string>());
  return items;
}

int64_t ConfigReader::size(Keys keys) {
  if (find(keys) == nullptr) {
    const bool other = keys.size() > 1;
    const std::string name(*keys.begin());
    problem(name,
            other ? "(or '" + std::string(*(keys.begin() + 1)) + "') is missing" : "is missing");
    return 1;
  }
  return integer(keys, 1, kMostElements).value_or(1);
}

int64_t ConfigReader::size_or(Keys keys, int64_t otherwise) {
  return integer(keys, 1, kMostElements).value_or(otherwise);
}

void ConfigReader::refuse_unknown_numeric_keys() {
  // A family with experts has read their number, whatever it is.
  const bool sparse = has_experts(*object_) || known_.contains("num_experts");
  for (const auto& [key, value] : object_->items()) {
    if (is_off(key, value) || known_.contains(key) || !changes_numbers(key)) continue;
    if (!sparse && configures_experts(key)) continue;
    problem(key, "= " + shown(value) + " is not supported and would change the numbers");
  }
}

void ConfigReader::note_dropout(ArchSpec& arch) {
  std::string list;
  for (const auto& [key, value] : object_->items()) {
    if (!is_dropout(key) || std::ranges::count(kWithoutEffect, key) > 0) continue;
    const double share = real({key}, 0.0, 1.0).value_or(0.0);
    if (share > 0.0) list += (list.empty() ? "" : ", ") + key + " = " + shown(value);
  }
  if (list.empty()) return;
  arch.config_notes.push_back(path_ + ": " + list +
                              " is not applied: transformers drops that share "
                              "while it trains, and this program has dropout in adapters only "
                              "(adapter.dropout)");
}

void ConfigReader::finish_keys(ArchSpec& arch) {
  if (!boolean({"is_causal"}).value_or(true)) {
    problem("is_causal", "= false is not supported: every token would see those behind it");
  }
  refuse_unknown_numeric_keys();
  note_dropout(arch);
  for (const std::string& key : known_) {
    if (!object_->contains(key)) arch.absent_keys.insert(key);
  }
  for (const auto& [key, value] : object_->items()) {
    if (value.is_null() || known_.contains(key)) continue;
    if (std::ranges::count(kWithoutEffect, key) == 0) arch.unread_keys.push_back(key);
  }
}

void ConfigReader::take_problems(const ConfigReader& inner) {
  problems_.insert(problems_.end(), inner.problems_.begin(), inner.problems_.end());
}

void ConfigReader::finish() const {
  if (!problems_.empty()) throw ConfigError(problems_);
}

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
                             std::string_view sliding_theta_key, ArchSpec& arch,
                             const RopeRules& rules) {
  arch.position = PositionKind::kRope;
  check_head_dim(config, arch);
  arch.rope.theta = config.real({"rope_theta"}, 1.0, kMostTheta).value_or(full_theta);
  arch.local_rope.theta = sliding_theta;
  if (!sliding_theta_key.empty()) {
    arch.local_rope.theta =
        config.real({sliding_theta_key}, 1.0, kMostTheta).value_or(sliding_theta);
  }
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
