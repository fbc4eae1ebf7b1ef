#include "model/families/family_rows.h"

#include <utility>

namespace longshore {
namespace {

using Modules = std::array<std::string_view, kModuleCount>;

Modules with(Modules modules, ModuleNames names) {
  for (const auto& [module, name] : names) modules[static_cast<size_t>(module)] = name;
  return modules;
}

}  // namespace

NameTable named_as_llama(std::string_view block_class, ModuleNames changes) {
  static const Modules llama =
      with({}, {
                   {Module::kTokens, "embed_tokens"},
                   {Module::kAttentionNorm, "layers.{i}.input_layernorm"},
                   {Module::kQuery, "layers.{i}.self_attn.q_proj"},
                   {Module::kKey, "layers.{i}.self_attn.k_proj"},
                   {Module::kValue, "layers.{i}.self_attn.v_proj"},
                   {Module::kQueryNorm, "layers.{i}.self_attn.q_norm"},
                   {Module::kKeyNorm, "layers.{i}.self_attn.k_norm"},
                   {Module::kOutput, "layers.{i}.self_attn.o_proj"},
                   {Module::kMlpNorm, "layers.{i}.post_attention_layernorm"},
                   {Module::kGate, "layers.{i}.mlp.gate_proj"},
                   {Module::kUp, "layers.{i}.mlp.up_proj"},
                   {Module::kDown, "layers.{i}.mlp.down_proj"},
                   {Module::kFinalNorm, "norm"},
                   {Module::kHead, "lm_head"},
               });
  return {.modules = with(llama, changes),
          .prefixes = {{.body = "model."}},
          .block_class = block_class,
          .skipped = {"layers.*.self_attn.rotary_emb.inv_freq"},
          .other_towers = {}};
}

NameTable llama_names(std::string_view block_class) {
  return named_as_llama(block_class, {});
}

NameTable olmo_names(std::string_view block_class) {
  return named_as_llama(block_class,
                        {{Module::kAttentionNorm, ""},
                         {Module::kAttentionPostNorm, "layers.{i}.post_attention_layernorm"},
                         {Module::kMlpNorm, ""},
                         {Module::kMlpPostNorm, "layers.{i}.post_feedforward_layernorm"}});
}

NameTable cohere_names(std::string_view block_class) {
  return named_as_llama(block_class, {{Module::kMlpNorm, ""}});
}

NameTable gemma_names(std::string_view block_class) {
  return named_as_llama(block_class,
                        {{Module::kAttentionPostNorm, "layers.{i}.post_attention_layernorm"},
                         {Module::kMlpNorm, "layers.{i}.pre_feedforward_layernorm"},
                         {Module::kMlpPostNorm, "layers.{i}.post_feedforward_layernorm"}});
}

NameTable gemma4_names(std::string_view block_class) {
  NameTable names = gemma_names(block_class);
  names.modules =
      with(names.modules, {{Module::kLayerScale, "layers.{i}.layer_scalar"},
                           {Module::kInputTable, "embed_tokens_per_layer"},
                           {Module::kInputProjection, "per_layer_model_projection"},
                           {Module::kInputNorm, "per_layer_projection_norm"},
                           {Module::kInputGate, "layers.{i}.per_layer_input_gate"},
                           {Module::kInputOut, "layers.{i}.per_layer_projection"},
                           {Module::kInputPostNorm, "layers.{i}.post_per_layer_input_norm"},
                           {Module::kMlpInnerNorm, "layers.{i}.post_feedforward_layernorm_1"},
                           {Module::kExpertsNorm, "layers.{i}.pre_feedforward_layernorm_2"},
                           {Module::kExpertsPostNorm, "layers.{i}.post_feedforward_layernorm_2"},
                           {Module::kRouter, "layers.{i}.router.proj"},
                           {Module::kRouterScale, "layers.{i}.router.scale"},
                           {Module::kRouterExpertScale, "layers.{i}.router.per_expert_scale"},
                           {Module::kExpertsGateUp, "layers.{i}.experts.gate_up_proj"},
                           {Module::kExpertsDown, "layers.{i}.experts.down_proj"}});
  return names;
}

NameTable phi_names(std::string_view block_class) {
  return named_as_llama(block_class, {{Module::kQkv, "layers.{i}.self_attn.qkv_proj"},
                                      {Module::kGateUp, "layers.{i}.mlp.gate_up_proj"}});
}

NameTable glm_names(std::string_view block_class) {
  return named_as_llama(block_class,
                        {{Module::kAttentionPostNorm, "layers.{i}.post_self_attn_layernorm"},
                         {Module::kMlpPostNorm, "layers.{i}.post_mlp_layernorm"},
                         {Module::kGateUp, "layers.{i}.mlp.gate_up_proj"}});
}

NameTable starcoder_names(std::string_view block_class) {
  return named_as_llama(block_class, {{Module::kGate, ""},
                                      {Module::kUp, "layers.{i}.mlp.c_fc"},
                                      {Module::kDown, "layers.{i}.mlp.c_proj"}});
}

NameTable hunyuan_names(std::string_view block_class) {
  return named_as_llama(block_class, {{Module::kQueryNorm, "layers.{i}.self_attn.query_layernorm"},
                                      {Module::kKeyNorm, "layers.{i}.self_attn.key_layernorm"}});
}

NameTable with_qwen_experts(NameTable names) {
  names.modules =
      with(names.modules, {{Module::kRouter, "layers.{i}.mlp.gate"},
                           {Module::kExpertGate, "layers.{i}.mlp.experts.{e}.gate_proj"},
                           {Module::kExpertUp, "layers.{i}.mlp.experts.{e}.up_proj"},
                           {Module::kExpertDown, "layers.{i}.mlp.experts.{e}.down_proj"},
                           {Module::kExpertsGateUp, "layers.{i}.mlp.experts.gate_up_proj"},
                           {Module::kExpertsDown, "layers.{i}.mlp.experts.down_proj"},
                           {Module::kSharedGate, "layers.{i}.mlp.shared_expert.gate_proj"},
                           {Module::kSharedUp, "layers.{i}.mlp.shared_expert.up_proj"},
                           {Module::kSharedDown, "layers.{i}.mlp.shared_expert.down_proj"},
                           {Module::kSharedSwitch, "layers.{i}.mlp.shared_expert_gate"}});
  return names;
}

NameTable with_corrected_experts(NameTable names) {
  names = with_qwen_experts(std::move(names));
  names.modules = with(names.modules,
                       {{Module::kRouterCorrection, "layers.{i}.mlp.gate.e_score_correction_bias"},
                        {Module::kSharedGate, "layers.{i}.mlp.shared_experts.gate_proj"},
                        {Module::kSharedUp, "layers.{i}.mlp.shared_experts.up_proj"},
                        {Module::kSharedDown, "layers.{i}.mlp.shared_experts.down_proj"},
                        {Module::kSharedSwitch, ""}});
  names.extra_layer = true;
  return names;
}

NameTable deepseek_names(std::string_view block_class) {
  return with_corrected_experts(
      named_as_llama(block_class, {{Module::kQueryDown, "layers.{i}.self_attn.q_a_proj"},
                                   {Module::kQueryLatentNorm, "layers.{i}.self_attn.q_a_layernorm"},
                                   {Module::kQueryUp, "layers.{i}.self_attn.q_b_proj"},
                                   {Module::kLatentDown, "layers.{i}.self_attn.kv_a_proj_with_mqa"},
                                   {Module::kLatentNorm, "layers.{i}.self_attn.kv_a_layernorm"},
                                   {Module::kLatentUp, "layers.{i}.self_attn.kv_b_proj"}}));
}

NameTable mixtral_names(std::string_view block_class) {
  NameTable names = named_as_llama(
      block_class, {{Module::kRouter, "layers.{i}.block_sparse_moe.gate"},
                    {Module::kExpertGate, "layers.{i}.block_sparse_moe.experts.{e}.w1"},
                    {Module::kExpertUp, "layers.{i}.block_sparse_moe.experts.{e}.w3"},
                    {Module::kExpertDown, "layers.{i}.block_sparse_moe.experts.{e}.w2"},
                    {Module::kExpertsGateUp, "layers.{i}.mlp.experts.gate_up_proj"},
                    {Module::kExpertsDown, "layers.{i}.mlp.experts.down_proj"}});
  names.fused_router = "layers.{i}.mlp.gate";
  return names;
}

NameTable gpt_oss_names(std::string_view block_class) {
  return named_as_llama(block_class,
                        {{Module::kSinks, "layers.{i}.self_attn.sinks"},
                         {Module::kRouter, "layers.{i}.mlp.router"},
                         {Module::kExpertsGateUp, "layers.{i}.mlp.experts.gate_up_proj"},
                         {Module::kExpertsDown, "layers.{i}.mlp.experts.down_proj"}});
}

NameTable in_wrapper(NameTable names) {
  names.prefixes = {{.body = "language_model.model.", .head = "language_model."},
                    {.body = "model.language_model."}};
  names.other_towers = {"vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*",
                        "model.multi_modal_projector.*"};
  return names;
}

NameTable qwen3_5_names(std::string_view block_class) {
  return named_as_llama(block_class, {{Module::kDeltaQkv, "layers.{i}.linear_attn.in_proj_qkv"},
                                      {Module::kDeltaGate, "layers.{i}.linear_attn.in_proj_z"},
                                      {Module::kDeltaBeta, "layers.{i}.linear_attn.in_proj_b"},
                                      {Module::kDeltaDecay, "layers.{i}.linear_attn.in_proj_a"},
                                      {Module::kDeltaConv, "layers.{i}.linear_attn.conv1d"},
                                      {Module::kDeltaRate, "layers.{i}.linear_attn.A_log"},
                                      {Module::kDeltaStep, "layers.{i}.linear_attn.dt_bias"},
                                      {Module::kDeltaNorm, "layers.{i}.linear_attn.norm"},
                                      {Module::kDeltaOutput, "layers.{i}.linear_attn.out_proj"}});
}

NameTable in_qwen3_5_wrapper(NameTable names) {
  names.prefixes = {{.body = "model.language_model."}};
  // The first is the layer that predicts a second token.
  names.other_towers = {"mtp.*", "model.visual.*"};
  return names;
}

NameTable in_gemma4_wrapper(NameTable names) {
  names.prefixes = {{.body = "model.language_model."}};
  names.other_towers = {"model.vision_tower.*", "model.embed_vision.*", "model.audio_tower.*",
                        "model.embed_audio.*"};
  return names;
}

NameTable qwen3_next_names(std::string_view block_class) {
  NameTable names = with_qwen_experts(qwen3_5_names(block_class));
  names.modules =
      with(names.modules, {{Module::kDeltaQkvGate, "layers.{i}.linear_attn.in_proj_qkvz"},
                           {Module::kDeltaBetaDecay, "layers.{i}.linear_attn.in_proj_ba"}});
  names.other_towers = {"mtp.*"};
  return names;
}

NameTable muse_glimmer_names(std::string_view block_class) {
  NameTable names = gemma_names(block_class);
  names.modules = with(names.modules, {{Module::kAttentionGate, "layers.{i}.self_attn.gate_proj"}});
  return names;
}

NameTable in_muse_glimmer_wrapper(NameTable names) {
  names.prefixes = {{.body = "model.language_model."}};
  names.other_towers = {"model.vision_tower.*", "model.vision_adapter.*",
                        "model.vision_projection.*"};
  return names;
}

NameTable nemotron_h_names(std::string_view block_class) {
  return {.modules = with(
              {}, {{Module::kTokens, "embeddings"},
                   {Module::kAttentionNorm, "layers.{i}.norm"},
                   {Module::kQuery, "layers.{i}.mixer.q_proj"},
                   {Module::kKey, "layers.{i}.mixer.k_proj"},
                   {Module::kValue, "layers.{i}.mixer.v_proj"},
                   {Module::kOutput, "layers.{i}.mixer.o_proj"},
                   {Module::kMambaIn, "layers.{i}.mixer.in_proj"},
                   {Module::kMambaConv, "layers.{i}.mixer.conv1d"},
                   {Module::kMambaRate, "layers.{i}.mixer.A_log"},
                   {Module::kMambaStep, "layers.{i}.mixer.dt_bias"},
                   {Module::kMambaSkip, "layers.{i}.mixer.D"},
                   {Module::kMambaNorm, "layers.{i}.mixer.norm"},
                   {Module::kMambaOut, "layers.{i}.mixer.out_proj"},
                   {Module::kMlpNorm, "layers.{i}.norm"},
                   {Module::kUp, "layers.{i}.mixer.up_proj"},
                   {Module::kDown, "layers.{i}.mixer.down_proj"},
                   {Module::kRouter, "layers.{i}.mixer.gate"},
                   {Module::kRouterCorrection, "layers.{i}.mixer.gate.e_score_correction_bias"},
                   {Module::kExpertsIn, "layers.{i}.mixer.fc1_latent_proj"},
                   {Module::kExpertsOut, "layers.{i}.mixer.fc2_latent_proj"},
                   {Module::kExpertUp, "layers.{i}.mixer.experts.{e}.up_proj"},
                   {Module::kExpertDown, "layers.{i}.mixer.experts.{e}.down_proj"},
                   {Module::kExpertsGateUp, "layers.{i}.mixer.experts.up_proj"},
                   {Module::kExpertsDown, "layers.{i}.mixer.experts.down_proj"},
                   {Module::kSharedUp, "layers.{i}.mixer.shared_experts.up_proj"},
                   {Module::kSharedDown, "layers.{i}.mixer.shared_experts.down_proj"},
                   {Module::kFinalNorm, "norm_f"},
                   {Module::kHead, "lm_head"}}),
          // Files have the first; the modules of transformers the second.
          .prefixes = {{.body = "backbone."}, {.body = "model."}},
          .block_class = block_class,
          .skipped = {},
          .other_towers = {"mtp.*"}};
}

NameTable gpt2_names(std::string_view block_class) {
  return {.modules = with({}, {{Module::kTokens, "wte"},
                               {Module::kPositions, "wpe"},
                               {Module::kAttentionNorm, "h.{i}.ln_1"},
                               {Module::kQkv, "h.{i}.attn.c_attn"},
                               {Module::kOutput, "h.{i}.attn.c_proj"},
                               {Module::kMlpNorm, "h.{i}.ln_2"},
                               {Module::kUp, "h.{i}.mlp.c_fc"},
                               {Module::kDown, "h.{i}.mlp.c_proj"},
                               {Module::kFinalNorm, "ln_f"},
                               {Module::kHead, "lm_head"}}),
          .prefixes = {{.body = "transformer."}, {.body = ""}},
          .block_class = block_class,
          .skipped = {"h.*.attn.bias", "h.*.attn.masked_bias"},
          .other_towers = {}};
}

}  // namespace longshore
