#include <algorithm>
#include <cmath>
#include <string>

#include "model/families/config_decoder.h"
#include "model/families/family_rows.h"

namespace longshore {
namespace {

constexpr int64_t kMostHeads = 65536;

// Refuses the parts of Gemma 4 that would change the numbers and are not here.
void refuse_other_parts(ConfigReader& config) {
  const std::string attention = config.text({"use_bidirectional_attention"}).value_or("vision");
  // "vision" is about the tokens of pictures; text is causal.
  if (attention != "vision") {
    config.problem("use_bidirectional_attention",
                   "= '" + attention + "' is not supported; supported: vision, null");
  }
  for (const std::string_view key : {"rope_theta", "rope_scaling"}) {
    if (config.find({key}) != nullptr) {
      config.problem(key, "is not read by this family; set rope_parameters");
    }
  }
}

// Reads the experts that run beside the MLP of every layer.
void read_experts_beside(ConfigReader& config, ArchSpec& arch) {
  constexpr int64_t kMostExperts = 65536;
  const bool enabled = config.boolean({"enable_moe_block"}).value_or(false);
  MoeSpec moe;
  moe.experts = config.integer({"num_experts"}, 1, kMostExperts).value_or(0);
  moe.top_k = config.integer({"top_k_experts"}, 1, kMostExperts).value_or(0);
  moe.width = config.integer({"moe_intermediate_size"}, 1, kMostToken).value_or(0);
  if (!enabled) return;  // the sizes mean nothing then
  if (moe.experts == 0 || moe.top_k == 0 || moe.width == 0 || moe.top_k > moe.experts) {
    config.problem("enable_moe_block",
                   "= true needs num_experts, moe_intermediate_size, and top_k_experts of at most "
                   "num_experts");
    return;
  }
  moe.beside = moe.fused = moe.renormalise = true;
  moe.rounded_weights = false;
  arch.moe = moe;
  for (LayerSpec& layer : arch.layers) layer.sparse = true;
}

void check_heads(ConfigReader& config, std::string_view key, const ArchSpec& arch) {
  for (const LayerSpec& layer : arch.layers) {
    const ArchSpec own = arch.of_layer(layer);
    if (own.heads % own.kv_heads == 0 && own.head_dim % 2 == 0) continue;
    config.problem(key, "gives a layer " + std::to_string(own.kv_heads) + " key heads of " +
                            std::to_string(own.head_dim) + " values for " +
                            std::to_string(own.heads) +
                            " heads; the heads must be a multiple and the values even");
    return;
  }
}

// Reads the sizes that transformers 5.23 writes by the layer's number.
void read_sizes_by_layer(ConfigReader& config, const Json& layers, ArchSpec& arch) {
  if (!layers.is_object()) {
    config.problem("per_layer_config", "must be an object");
    return;
  }
  for (const auto& [number, sizes] : layers.items()) {
    const bool digits = !number.empty() && number.size() < 6 &&
                        number.find_first_not_of("0123456789") == std::string::npos;
    const int64_t layer = digits ? std::stoll(number) : arch.layer_count();
    if (layer >= arch.layer_count() || !sizes.is_object()) {
      config.problem("per_layer_config", "has '" + number + "', which is no layer with sizes");
      continue;
    }
    ConfigReader inner(sizes, config.path() + ": per_layer_config." + number);
    LayerSpec& own = arch.layers[static_cast<size_t>(layer)];
    own.head_dim = inner.integer({"head_dim"}, 1, kMostHeads).value_or(0);
    own.kv_heads = inner.integer({"num_key_value_heads"}, 1, kMostHeads).value_or(0);
    for (const auto& [key, value] : sizes.items()) {
      if (key != "head_dim" && key != "num_key_value_heads") {
        inner.problem(key, "is not supported for a single layer");
      }
    }
    config.take_problems(inner);
  }
  check_heads(config, "per_layer_config", arch);
}

// Reads the sizes of full layers in the spelling of published files. `shared` says that values are
// keys in those layers.
void read_full_sizes(ConfigReader& config, bool shared, ArchSpec& arch) {
  const int64_t head_dim = config.integer({"global_head_dim"}, 1, kMostHeads).value_or(512);
  const int64_t kv_heads =
      config.integer({"num_global_key_value_heads"}, 1, kMostHeads).value_or(0);
  for (LayerSpec& layer : arch.layers) {
    if (layer.window > 0) continue;
    layer.head_dim = head_dim;
    layer.kv_heads = shared ? kv_heads : 0;
  }
  check_heads(config, "global_head_dim", arch);
}

void read_layers(ConfigReader& config, ArchSpec& arch) {
  const int64_t window = read_window(config, 512);
  read_windows(config, window, arch, [](int64_t layer) { return (layer + 1) % 6 != 0; });
  arch.layers.back().window = 0;  // transformers makes the last layer a full one
  const bool shared = config.boolean({"attention_k_eq_v"}).value_or(false);
  for (LayerSpec& layer : arch.layers) {
    layer.local_rope = layer.window > 0;
    layer.values_are_keys = shared && !layer.local_rope;
    layer.attention_scale = 1.0;
  }
  if (const Json* by_layer = config.find({"per_layer_config"})) {
    read_sizes_by_layer(config, *by_layer, arch);
  } else {
    read_full_sizes(config, shared, arch);
  }
}

// Reads which layers read the keys and values of an earlier layer of their type (E2B, E4B).
void read_shared_keys(ConfigReader& config, ArchSpec& arch) {
  constexpr std::string_view kKey = "num_kv_shared_layers";
  const int64_t shared = config.integer({kKey}, 0, kMostToken).value_or(0);
  const bool wide = config.boolean({"use_double_wide_mlp"}).value_or(false);
  if (shared == 0) return;
  const int64_t own = arch.layer_count() - shared;
  for (int64_t number = std::max<int64_t>(own, 0); number < arch.layer_count(); ++number) {
    LayerSpec& layer = arch.layers[static_cast<size_t>(number)];
    int64_t source = own - 1;
    while (source >= 0 && arch.layers[static_cast<size_t>(source)].local_rope != layer.local_rope) {
      --source;
    }
    if (source < 0) {
      config.problem(kKey, "leaves no layer whose keys and values layer " + std::to_string(number) +
                               " can read: none of its type in layer_types is before them");
      return;
    }
    const ArchSpec sizes = arch.of_layer(layer);
    const ArchSpec there = arch.of_layer(arch.layers[static_cast<size_t>(source)]);
    if (sizes.head_dim != there.head_dim || sizes.kv_heads != there.kv_heads) {
      config.problem(kKey, "lets layer " + std::to_string(number) + " read the keys of layer " +
                               std::to_string(source) + ", whose heads have other sizes");
      return;
    }
    layer.keys_of = source;
    layer.values_are_keys = false;
    if (wide) layer.intermediate = 2 * arch.intermediate;
  }
}

// Reads the inputs of single layers (E2B, E4B).
void read_layer_inputs(ConfigReader& config, ArchSpec& arch) {
  // An absent key means 256 in transformers, and null none.
  arch.layer_input = config.integer({"hidden_size_per_layer_input"}, 0, kMostHeads)
                         .value_or(config.has("hidden_size_per_layer_input") ? 0 : 256);
  arch.layer_input_rows = config.size_or({"vocab_size_per_layer_input"}, 262144);
  if (arch.layer_input == 0) return;
  if (arch.moe.experts > 0) {
    config.problem("hidden_size_per_layer_input", "other than 0 is not supported with experts");
  }
  if (arch.layer_input_rows < arch.vocabulary) {
    config.problem("vocab_size_per_layer_input",
                   "is less than vocab_size, so some tokens have no input of the layers");
  }
}

void read_ropes(ConfigReader& config, ArchSpec& arch) {
  const Json* ropes = config.find({"rope_parameters"});
  if (ropes == nullptr) {
    arch.rope.turning = 0.25;
  } else {
    const bool slides = std::ranges::any_of(arch.layers, &LayerSpec::local_rope);
    for (const auto& [type, used] :
         {std::pair("full_attention", true), {"sliding_attention", slides}}) {
      const bool given = ropes->is_object() && ropes->contains(type) && ropes->at(type).is_object();
      if (used && !given) config.problem("rope_parameters", std::string("lacks '") + type + "'");
    }
  }
  read_rope_by_layer_type(config, 1e6, 1e4, "", arch, {.proportional = true});
}

}  // namespace

void read_gemma4_text(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.vocabulary = 262144, .heads = 8, .kv_heads = 4, .head_dim = 256},
                   .tied = true,
                   .intermediate = 9216},
                  arch);
  // Files may also have "hidden_act", which transformers ignores for Gemma.
  read_activation(config, {"hidden_activation"}, "gelu_pytorch_tanh", arch);
  arch.qkv_bias = arch.output_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.norm = NormKind::kRmsWide;
  arch.norm_placement = NormPlacement::kBoth;
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.value_norm = arch.layer_scale = true;
  arch.embedding_scale = std::sqrt(static_cast<double>(arch.hidden));
  arch.embedding_scale_rounded = true;
  arch.logit_cap = config.real({"final_logit_softcapping"}, 1e-6, kMostReal).value_or(0.0);
  refuse_other_parts(config);
  read_experts_beside(config, arch);
  read_layers(config, arch);
  read_shared_keys(config, arch);
  read_layer_inputs(config, arch);
  read_ropes(config, arch);
}

}  // namespace longshore
