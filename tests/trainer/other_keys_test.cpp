// The keys of Axolotl, LLaMA-Factory and TRL, one at a time and as their own examples have them.
// Goal: each key is converted or named, at the top level and below it, whatever its value.
#include <algorithm>
#include <utility>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/trainer/other_files.h"

namespace longshore {
namespace {

class OtherKeysOneByOne : public OtherFiles {
 protected:
  // Returns the names among `keys` that neither change the run file of `base` nor are named. A key
  // of `base` is replaced. Entries are separated by " |".
  std::vector<std::string> dropped(const std::string& base, const std::string& keys) {
    std::vector<std::string> lost;
    const std::string before = converted(base).draft.toml();
    for (size_t begin = keys.find_first_not_of('\n'); begin < keys.size();) {
      const size_t end = std::min(keys.find(" |", begin), keys.size());
      const std::string entry = keys.substr(begin, end - begin);
      begin = std::min(keys.find_first_not_of(" |\n", end), keys.size());
      const std::string name = entry.substr(0, entry.find(':'));
      if (!shows(base, before, name, entry)) lost.push_back(entry);
    }
    return lost;
  }

 private:
  bool shows(const std::string& base, const std::string& before, const std::string& name,
             const std::string& entry) {
    std::string text = entry + "\n";
    for (size_t at = 0; at < base.size();) {
      const size_t end = base.find('\n', at) + 1;
      const std::string line = base.substr(at, end - at);
      if (!line.starts_with(name + ":")) text += line;
      at = end;
    }
    try {
      const ConvertedRun run = converted(text);
      if (run.draft.toml() != before) return true;
      const auto names = [&name](const NotConverted& entry) {
        return std::ranges::any_of(entry.keys,
                                   [&name](const std::string& key) { return has(key, name); });
      };
      return std::ranges::any_of(run.left, names) || std::ranges::any_of(run.needless, names);
    } catch (const ConfigError& error) {
      return has(error.what(), name);
    }
  }
};

constexpr const char* kAxolotl =
    "base_model: m\ndatasets: [{path: own.jsonl, type: chat_template}]\nadapter: lora\n";
constexpr const char* kFactory =
    "model_name_or_path: m\nstage: sft\ndataset: own.jsonl\ntemplate: qwen\n";
constexpr const char* kTrl = "model_name_or_path: m\ndataset_name: own.jsonl\nuse_peft: true\n";

// Values that differ from the trainers' own defaults.
constexpr const char* kAxolotlKeys = R"(
accelerator_config: {some: 1} | activation_offloading: true | adam_beta1: 0.8 |
adam_beta2: 0.8 | adam_beta3: 0.5 | adam_epsilon: 0.001 | adam_epsilon2: 0.5 | adapter: dora |
added_tokens_overrides: 3 | attn_implementation: some | auto_find_batch_size: true |
auto_resume_from_checkpoints: true | axolotl_config_path: some | base_model: other |
base_model_config: some | batch_flattening: true | batch_size: 3 | bench_dataset: some |
bench_split: some | bf16: false | bfloat16: true |
bnb_config_kwargs: {bnb_4bit_use_double_quant: false} | center_rewards_coefficient: 0.5 |
chat_template: chatml | chat_template_jinja: x.jinja | chat_template_kwargs: {some: 1} |
chunked_cross_entropy: true | chunked_cross_entropy_num_chunks: 3 | cls_model_config: some |
comet_api_key: some | comet_experiment_config: {some: 1} | comet_experiment_key: some |
comet_mode: some | comet_online: true | comet_project_name: some | comet_workspace: some |
context_parallel_size: 3 | cosine_constant_lr_ratio: 0.5 | cosine_min_lr_ratio: 0.5 |
cpo_alpha: 0.5 | curriculum_sampling: true | dataloader_drop_last: true |
dataloader_num_workers: 3 | dataloader_pin_memory: true | dataloader_prefetch_factor: 3 |
dataset_exact_deduplication: true | dataset_keep_in_memory: true | dataset_num_proc: 3 |
dataset_prepared_path: some | dataset_processes: 3 | dataset_shard_idx: 3 |
dataset_shard_num: 3 | datasets: [{path: b.jsonl}] | ddp: true | ddp_broadcast_buffers: true |
ddp_bucket_cap_mb: 3 | ddp_find_unused_parameters: true | ddp_timeout: 3 | deepcompile: true |
deepspeed: ds.json | default_system_message: some | device: some | device_map: some |
dion_lr: 0.5 | dion_momentum: 0.5 | dion_rank_fraction: 0.5 | dion_rank_multiple_of: 3 |
do_bench_eval: true | do_causal_lm_eval: true | dp_replicate_size: 3 | dp_shard_size: 3 |
dpo_beta: 0.5 | dpo_generate_during_eval: true | dpo_label_smoothing: 0.5 |
dpo_loss_type: [ipo] | dpo_loss_weights: 0.5 | dpo_norm_loss: true | dpo_padding_free: true |
dpo_use_liger_kernel: true | dpo_use_logits_to_keep: true | dpo_use_weighting: true |
dynamic_checkpoint: 3 | eaft_alpha: 0.5 | eaft_k: 3 | eager_attention: true |
early_stopping_patience: 3 | ebft: {some: 1} | embedding_lr: 0.5 | embedding_lr_scale: 0.5 |
embeddings_skip_upcast: true | eot_tokens: [some] | eval_batch_size: 3 |
eval_causal_lm_metrics: [some] | eval_max_new_tokens: 3 | eval_sample_packing: true |
eval_sequence_len: 3 | eval_steps: 7 | eval_strategy: epoch | eval_table_size: 3 |
evals_per_epoch: 3 | evaluation_strategy: epoch | excess_length_strategy: truncate |
experimental_skip_move_to_device: false | experts_implementation: some |
fix_untrained_tokens: 3 | flash_attention: true | flash_attn_cross_entropy: true |
flash_attn_d512: true | flash_attn_fuse_mlp: true | flash_attn_rms_norm: true |
flash_optimum: true | flex_attention: true | flex_attn_compile_kwargs: {some: 1} |
float16: true | float32: true | fp16: true | fp32_norm_classes: [some] | fp32_norms: true |
fp8: true | fp8_enable_fsdp_float8_all_gather: true | freeze_mm_modules: true | fsdp: [some] |
fsdp_config: {some: 1} | fsdp_final_state_dict_type: some | fsdp_version: 3 |
fused_attn_kernel: true | gc_collect_steps: 3 | gc_steps: 3 | gemma4_hybrid_attn_impl: true |
generate_samples: true | generation_do_sample: false | generation_max_new_tokens: 3 |
generation_prompt_ratio: 0.25 | generation_temperature: 0.5 | generation_top_k: 3 |
generation_top_p: 0.5 | gptq: true | gpu_memory_limit: 3 | gradient_accumulation_steps: 3 |
gradient_checkpointing: offload | gradient_checkpointing_kwargs: {some: 1} |
gradio_max_new_tokens: 3 | gradio_server_name: some | gradio_server_port: 3 |
gradio_share: true | gradio_temperature: 0.5 | gradio_title: some | greater_is_better: true |
group_by_length: true | heads_k_stride: 3 | hf_mlflow_log_artifacts: true |
hf_use_auth_token: true | hub_model_id: some | hub_revision: some | hub_strategy: some |
image_resize_algorithm: some | image_size: 3 | include_tkps: false |
include_tokens_per_second: true | is_falcon_derived_model: true |
is_llama_derived_model: true | is_mistral_derived_model: true | is_preprocess: true |
is_qwen_derived_model: true | jagged_restart_anneal_steps: 3 | jagged_restart_steps: 3 |
jagged_restart_warmup_steps: 3 | kto_desirable_weight: 0.5 | kto_undesirable_weight: 0.5 |
large_head_attention: some | layer_offloading: true | learning_rate: 0.5 |
lisa_layers_attribute: some | lisa_n_layers: 3 | lisa_step_interval: 3 |
llama4_linearized_experts: true | load_best_model_at_end: true | load_in_4bit: true |
load_in_8bit: true | local_rank: 3 | logging_steps: 3 | lora_alpha: 3 |
lora_alpha_pattern: {some: 1} | lora_dropout: 0.25 | lora_embedding_kernel: true |
lora_fan_in_fan_out: true | lora_mlp_kernel: true | lora_model_dir: runs/a |
lora_modules_to_save: [lm_head] | lora_o_kernel: true | lora_on_cpu: true |
lora_qkv_kernel: true | lora_r: 3 | lora_rank_pattern: {some: 1} |
lora_target_modules: [q_proj] | lora_target_parameters: [some] | loraplus_lr_embedding: 0.5 |
loraplus_lr_ratio: 16 | loss_watchdog_patience: 3 | loss_watchdog_threshold: 0.5 |
low_cpu_mem_usage: false | lr_div_factor: 0.5 |
lr_groups: [{name: a, modules: [q_proj], lr: 0.1}] | lr_quadratic_warmup: true |
lr_scheduler: linear | lr_scheduler_kwargs: {num_cycles: 2} | max_grad_norm: 0.5 |
max_memory: 3 | max_packed_sequence_len: 3 | max_prompt_len: 3 | max_steps: 7 |
mean_resizing_embeddings: true | merge_lora: true | merge_method: some |
metric_for_best_model: bleu | micro_batch_size: 2 | min_sample_len: 3 |
mlflow_experiment_name: some | mlflow_run_name: some | mlflow_tracking_uri: some |
model_quantization_config: {some: 1} | model_quantization_config_kwargs: {some: 1} |
multipack_real_batches: true | neftune_noise_alpha: 0.5 | noisy_embedding_alpha: 0.5 |
num_dataset_shards_to_save: 3 | num_epochs: 5 | num_generation_samples: 5 | num_labels: 3 |
optim_args: {some: 1} | optim_target_modules: [some] | optimizer: adamw_8bit |
orpo_alpha: 0.5 | otel_metrics_host: some | otel_metrics_port: 3 | output_dir: other |
pad_to_multiple_of: 3 | pad_to_sequence_len: true | peft: {some: 1} |
peft_autocast_adapter_dtype: true | peft_ensure_weight_tying: true |
peft_init_lora_weights: pissa | peft_layer_replication: 3 | peft_layers_pattern: [some] |
peft_layers_to_transform: 3 | peft_trainable_token_indices: 3 | peft_use_dora: true |
peft_use_rslora: true | plugins: [some] | pose_max_context_len: 3 | pose_num_chunks: 3 |
pose_split_on_token_ids: 3 | precompute_ref_log_probs: true | preprocess_iterable: true |
pretrain_multipack_attn: false | pretrain_multipack_buffer_size: 3 |
pretraining_dataset: [{path: b.jsonl}] | pretraining_sample_concatenation: true |
process_reward_model: true | processor_kwargs: {some: 1} | processor_type: some |
profiler_steps: 3 | profiler_steps_start: 3 | push_dataset_to_hub: some | qat: {some: 1} |
qgalore_cos_threshold: 0.5 | qgalore_gamma_proj: 3 | qgalore_proj_bits: 3 |
qgalore_proj_group_size: 3 | qgalore_proj_quant: false | qgalore_proj_type: some |
qgalore_queue_size: 3 | qgalore_rank: 3 | qgalore_scale: 0.5 | qgalore_update_proj_gap: 3 |
qlora_sharded_model_loading: true | quantization: {some: 1} | quantize_moe_experts: true |
ray_num_workers: 3 | ray_run_name: some | reinit_weights: true | relora: true |
relora_cpu_offload: true | relora_prune_method: some | relora_prune_ratio: 0.5 |
remove_unused_columns: true | resize_token_embeddings_to_32x: true |
resources_per_worker: {some: 1} | resume_from_checkpoint: some/checkpoint |
reward_model: true | ring_attn_func: some | rl: dpo | rl_beta: 0.5 | role_boundaries: [some] |
rope_scaling: some | rpo_alpha: 0.5 | s2_attention: true | sage_attention: true |
sample_packing: true | sample_packing_bin_size: 3 | sample_packing_eff_est: 0.5 |
sample_packing_group_size: 3 | sample_packing_mp_start_method: some |
sample_packing_sequentially: true | save_first_step: true | save_only_model: true |
save_safetensors: false | save_steps: 7 | save_strategy: no | save_total_limit: 5 |
saves_per_epoch: 3 | scaling_softmax: true | scaling_softmax_bias: 0.5 |
scaling_softmax_factor: 0.5 | sdp_attention: true | sdpa_varlen: true | seed: 7 |
selective_checkpointing: true | sequence_len: 64 | sequence_parallel_degree: 3 |
shrink_embeddings: true | shuffle_before_merging_datasets: true |
shuffle_merged_datasets: false | simpo_gamma: 0.5 | skip_prepare_dataset: true |
special_tokens: {some: 1} | streaming: true | streaming_multipack_buffer_size: 3 |
strict: true | tensor_parallel_size: 3 | test_datasets: [{path: b.jsonl}] | tf32: true |
tiled_mlp: true | tiled_mlp_num_shards: 3 | tiled_mlp_use_original_mlp: false |
tokenizer_config: t | tokenizer_legacy: true | tokenizer_save_jinja_files: false |
tokenizer_type: some | tokenizer_use_fast: true | tokenizer_use_mistral_common: true |
tokens: [some] | torch_compile: true | torch_compile_backend: some |
torch_compile_mode: some | torch_compile_options: 0.5 | torch_empty_cache_steps: 3 |
torchdistx_path: some | total_num_tokens: 3 | total_supervised_tokens: 3 |
trackio_project_name: some | trackio_run_name: some | trackio_space_id: some |
train_on_inputs: true | trainer_cls: some | trl: {some: 1} | trust_remote_code: true |
unfrozen_parameters: [^lm_head.weight$] | use_comet: true | use_eaft: true |
use_kernels: true | use_mlflow: true | use_onebitllms: true | use_otel_metrics: true |
use_pose: true | use_ray: true | use_tensorboard: true | use_trackio: true | use_wandb: true |
val_set_size: 0.1 | vllm: {some: 1} | wandb_entity: some | wandb_log_model: some |
wandb_mode: some | wandb_name: some | wandb_project: some | wandb_run_id: some |
wandb_watch: some | warmup_ratio: 0.25 | warmup_steps: 7 | weight_decay: 0.5 | world_size: 3 |
xformers_attention: true)";
constexpr const char* kFactoryKeys = R"(
adam_beta1: 0.8 | adam_beta2: 0.8 | adam_epsilon: 0.001 | adapter_folder: some |
adapter_name_or_path: runs/a | add_special_tokens: some | add_tokens: some |
additional_target: lm_head | apollo_layerwise: true | apollo_proj: some |
apollo_proj_type: some | apollo_rank: 3 | apollo_scale: 0.5 | apollo_scale_front: true |
apollo_scale_type: some | apollo_target: some | apollo_update_interval: 3 | asft_alpha: 0.5 |
audio_sampling_rate: 3 | average_tokens_across_devices: false | badam_mask_mode: some |
badam_mode: some | badam_start_block: 3 | badam_switch_interval: 3 | badam_switch_mode: some |
badam_update_ratio: 0.5 | badam_verbose: 3 | block_diag_attn: true | buffer_size: 3 |
cache_dir: some | compute_accuracy: true | compute_dtype: some | create_new_adapter: true |
crop_to_patches: true | cutoff_len: 64 | data_shared_file_system: true |
dataloader_drop_last: true | dataloader_num_workers: true | dataset: other.jsonl |
ddp_timeout: 3 | deepspeed: ds.json | default_system: some | device_map: {some: 1} |
disable_gradient_checkpointing: true | disable_shuffling: true | do_eval: true |
do_train: true | double_quantization: false | dpo_label_smoothing: 0.5 | eaft_alpha: 0.5 |
early_stopping_steps: 3 | enable_liger_kernel: true | enable_thinking: false |
enable_torch_profiler: true | eval_accumulation_steps: 3 | eval_dataset: other.jsonl |
eval_num_beams: 3 | eval_on_each_dataset: true | eval_steps: 7 | eval_strategy: no |
export_device: some | export_dir: some | export_hub_model_id: some |
export_legacy_format: true | export_quantization_bit: 3 | export_quantization_dataset: some |
export_quantization_maxlen: 3 | export_quantization_nsamples: 3 | export_size: 3 |
finetuning_type: full | flash_attn: some | fp16: true | fp8: true | fp8_backend: some |
fp8_enable_fsdp_float8_all_gather: true | freeze_extra_modules: some |
freeze_language_model: true | freeze_multi_modal_projector: false |
freeze_trainable_layers: 3 | freeze_trainable_modules: some | freeze_vision_tower: false |
fsdp: full_shard | galore_layerwise: true | galore_proj_type: some | galore_rank: 3 |
galore_scale: 0.5 | galore_target: some | galore_update_interval: 3 |
gradient_accumulation_steps: 4 | group_by_length: true | hf_hub_token: some |
hub_model_id: a/b | hyper_parallel_args: some | hyper_parallel_cp_size: 3 |
ignore_pad_token_for_loss: false | image_do_pan_and_scan: true | image_max_pixels: 3 |
image_min_pixels: 3 | include_effective_tokens_per_second: true | infer_backend: some |
infer_dtype: 0.5 | init_special_tokens: some | interleave_probs: some |
kt_cpu_activation: some | kt_expert_checkpoint_path: some |
kt_lora_expert_intermediate_size: 3 | kt_lora_expert_num: 3 |
kt_non_expert_weight_path: some | kt_use_lora_experts: true | kt_weight_path: some |
kto_chosen_weight: 0.5 | kto_rejected_weight: 0.5 | label_smoothing_factor: 0.1 |
ld_alpha: 0.5 | learning_rate: 0.5 | load_best_model_at_end: true | log_level: debug |
lora_alpha: 3 | lora_dropout: 0.25 | lora_rank: 3 | lora_target: q_proj |
loraplus_lr_embedding: 0.5 | loraplus_lr_ratio: 16 | low_cpu_mem_usage: false |
lr_scheduler_kwargs: {num_cycles: 2} | lr_scheduler_type: cosine | mask_history: true |
master_addr: some | master_port: some | max_grad_norm: 0.5 | max_samples: 3 | max_steps: 7 |
media_dir: some | megatron_bridge_args: some | mix_strategy: interleave_under |
mixture_of_depths: some | model_max_length: 3 | model_name_or_path: other |
model_revision: v2 | module_dropout: 0.5 | moe_aux_loss_coef: 0.5 | ms_hub_token: some |
neat_packing: true | neftune_noise_alpha: 5 | new_special_tokens_config: some |
num_train_epochs: 5 | offload_folder: some | oft_block_size: 3 | oft_rank: 3 |
oft_target: some | om_hub_token: some | optim: adamw_8bit | output_dir: other |
overwrite_cache: true | overwrite_output_dir: true | packing: true |
per_device_eval_batch_size: 3 | per_device_train_batch_size: 3 | pissa_convert: true |
pissa_init: true | pissa_iter: 3 | plot_loss: true | ppo_buffer_size: 3 | ppo_epochs: 3 |
ppo_score_norm: true | ppo_target: 0.5 | ppo_whiten_rewards: true | pref_bco_weight: 0.5 |
pref_beta: 0.5 | pref_ftx: 0.5 | pref_loss: ipo | preprocessing_batch_size: 3 |
preprocessing_num_workers: 3 | preserve_thinking: true | print_param_status: true |
profile_modules: some | profiler_active_steps: 3 | profiler_output_dir: some |
profiler_profile_memory: false | profiler_record_shapes: false | profiler_repeat: 3 |
profiler_wait_steps: 3 | profiler_warmup_steps: 3 | profiler_with_stack: false |
pure_bf16: true | push_to_hub: true | quantization_bit: 4 | quantization_device_map: some |
quantization_method: bnb | quantization_type: fp4 | ray_init_kwargs: {some: 1} |
ray_num_workers: 3 | ref_model: other | ref_model_adapters: some |
ref_model_quantization_bit: 3 | report_to: wandb | resize_vocab: true |
resume_from_checkpoint: some/checkpoint | reward_model: some | reward_model_adapters: some |
reward_model_quantization_bit: 3 | reward_model_type: some | rope_scaling: some |
run_name: x | save_only_model: true | save_safetensors: false | save_steps: 7 |
save_strategy: no | save_total_limit: 5 | seed: 7 | sglang_config: {some: 1} |
sglang_lora_backend: some | sglang_maxlen: 3 | sglang_mem_fraction: 0.5 | sglang_tp_size: 3 |
shift_attn: true | simpo_gamma: 0.25 | split_special_tokens: true | stage: dpo |
streaming: true | swanlab_api_key: some | swanlab_lark_secret: some |
swanlab_lark_webhook_url: some | swanlab_logdir: some | swanlab_mode: some |
swanlab_project: some | swanlab_run_name: some | swanlab_workspace: some | template: qwen |
tf32: true | tokenized_path: some | tool_format: some | torch_compile: true |
train_from_scratch: true | train_on_prompt: true | trust_remote_code: true |
upcast_layernorm: true | upcast_lmhead_output: true | use_adam_mini: true | use_apollo: true |
use_asft_loss: true | use_audio_in_video: true | use_badam: true | use_dft_loss: true |
use_dora: true | use_eaft_loss: true | use_fast_tokenizer: false | use_galore: true |
use_hyper_parallel: true | use_kt: true | use_kv_cache: false | use_liger_kernel: true |
use_llama_pro: true | use_mca: true | use_megatron_bridge: true | use_muon: true |
use_reentrant_gc: false | use_rslora: true | use_swanlab: true | use_unsloth: true |
use_unsloth_gc: true | use_v1_kernels: true | val_size: 0.1 | video_fps: 0.5 |
video_max_pixels: 3 | video_maxlen: 3 | video_min_pixels: 3 | vllm_config: {some: 1} |
vllm_enforce_eager: true | vllm_gpu_util: 0.5 | vllm_max_lora_rank: 3 | vllm_maxlen: 3 |
warmup_ratio: 0.25 | warmup_steps: 7 | weight_decay: 0.5)";
constexpr const char* kTrlKeys = R"(
activation_offloading: true | adam_beta1: 0.8 | adam_beta2: 0.8 | adam_epsilon: 0.001 |
alpha: 0.5 | assistant_only_loss: true | attn_implementation: some |
average_tokens_across_devices: false | beta: 0.5 | bf16: false |
bnb_4bit_quant_storage: some | bnb_4bit_quant_type: some | chat_template_path: x.jinja |
completion_only_loss: true | cpo_alpha: 0.5 | dataloader_drop_last: true |
dataloader_num_workers: true | dataset_kwargs: {some: 1} | dataset_name: a/b |
dataset_num_proc: 3 | dataset_streaming: true | dataset_text_field: body |
datasets: [{path: b.jsonl}] | ddp_timeout: 3 | deepspeed: ds.json | desirable_weight: 0.5 |
disable_dropout: false | discopop_tau: 0.5 | do_eval: true | do_train: true | dtype: some |
eos_token: some | eval_accumulation_steps: 3 | eval_packing: true | eval_steps: 7 |
eval_strategy: no | f_alpha_divergence_coef: 0.25 | f_divergence_type: js_divergence |
fp16: true | fsdp: full_shard | generate_during_eval: true | gradient_accumulation_steps: 4 |
gradient_checkpointing: offload | group_by_length: true | hub_model_id: a/b |
ignore_bias_buffers: true | is_encoder_decoder: true | label_smoothing: 0.5 |
label_smoothing_factor: 0.1 | ld_alpha: 0.5 | learning_rate: 0.5 |
load_best_model_at_end: true | load_in_4bit: true | load_in_8bit: true | log_level: debug |
logging_steps: 3 | lora_alpha: 3 | lora_dropout: 0.25 | lora_modules_to_save: [lm_head] |
lora_r: 3 | lora_target_modules: [q_proj] | lora_target_parameters: [some] |
lora_task_type: some | loss_type: ipo | loss_weights: 0.5 |
lr_scheduler_kwargs: {num_cycles: 2} | lr_scheduler_type: cosine | max_completion_length: 3 |
max_grad_norm: 0.5 | max_length: 64 | max_steps: 7 | model_init_kwargs: {some: 1} |
model_name_or_path: other | model_revision: v2 | neftune_noise_alpha: 5 |
num_train_epochs: 5 | optim: adamw_8bit | output_dir: other | overwrite_output_dir: true |
packing: true | packing_strategy: wrapped | pad_to_multiple_of: 3 | pad_token: some |
padding_free: true | padding_value: 3 | per_device_eval_batch_size: 3 |
per_device_train_batch_size: 3 | precompute_ref_batch_size: 3 |
precompute_ref_log_probs: true | push_to_hub: true | ref_model_mixup_alpha: 0.5 |
ref_model_sync_steps: 3 | report_to: wandb | resume_from_checkpoint: some/checkpoint |
router_aux_loss_coef: 0.5 | run_name: x | save_only_model: true | save_safetensors: false |
save_steps: 7 | save_strategy: no | save_total_limit: 5 | seed: 7 | shuffle_dataset: true |
simpo_gamma: 0.25 | streaming: true | sync_ref_model: true | test_split_size: 0.5 |
tf32: true | torch_compile: true | torch_empty_cache_steps: 3 |
train_sampling_strategy: sequential | truncation_mode: keep_end | trust_remote_code: true |
undesirable_weight: 0.5 | use_bnb_nested_quant: true | use_dora: true |
use_liger_kernel: true | use_rslora: true | use_weighting: true |
warmup_ratio: 0.25 | warmup_steps: 7 | weight_decay: 0.5)";

TEST_F(OtherKeysOneByOne, AreConvertedOrNamed) {
  const std::vector<std::string> none;
  EXPECT_EQ(dropped(kAxolotl, kAxolotlKeys), none);
  EXPECT_EQ(dropped(kFactory, kFactoryKeys), none);
  EXPECT_EQ(dropped(kTrl, kTrlKeys), none);
}

// Goal: the same rule for the keys of an entry of `datasets`, which decide what is trained.
TEST_F(OtherKeysOneByOne, AreConvertedOrNamedInDatasetsToo) {
  const std::string before = converted(kAxolotl).draft.toml();
  for (const std::string entry : {"train_on_eot: false",
                                  "train_on_eos: none",
                                  "message_field_training: train_this",
                                  "message_field_training_detail: spans",
                                  "split_thinking: true",
                                  "field_tools: functions",
                                  "field_thinking: thoughts",
                                  "template_thinking_key: thought",
                                  "field: body",
                                  "name: en",
                                  "revision: v2",
                                  "roles_to_train: [user]",
                                  "drop_system_message: true",
                                  "shards: 4",
                                  "chat_template: chatml",
                                  "chat_template_jinja: x.jinja",
                                  "ds_type: json",
                                  "split: test",
                                  "message_property_mappings: {role: who}",
                                  "input_transform: a.b",
                                  "made_up: 3",
                                  "trust_remote_code: true",
                                  "field_messages: talk",
                                  "field_chosen: good",
                                  "skip: 5"}) {
    const std::string name = entry.substr(0, entry.find(':'));
    const ConvertedRun run =
        converted("base_model: m\ndatasets: [{path: own.jsonl, type: chat_template, " + entry +
                  "}]\nadapter: lora\n");
    const std::string key = "datasets[0]." + name;
    EXPECT_TRUE(why(run.left, key) != "" || why(run.needless, key) != "" ||
                run.draft.toml() != before)
        << entry;
  }
  const ConvertedRun run = converted(
      "base_model: m\ndatasets: [{path: own.jsonl, type: chat_template, train_on_eot: false, "
      "field_tools: functions, message_field_training: train, made_up: 3}]\n");
  EXPECT_TRUE(has(why(run.left, "datasets[0].train_on_eot"), "end of each trained answer"));
  EXPECT_TRUE(has(why(run.left, "datasets[0].made_up"), "does not know"));
  EXPECT_NE(why(run.needless, "datasets[0].message_field_training"), "") << "read here, too";
  EXPECT_EQ(load_run_config({}, run.draft.overrides()).data.keys,
            std::vector<std::string>{"tools = \"functions\""});
}

// Goal: what a value of `false`, 0 or "none" asks for depends on the key.
TEST_F(OtherKeysOneByOne, AskForSomethingWithFalseWhereTrueIsTheDefault) {
  const std::string axolotl = kAxolotl, factory = kFactory, trl = kTrl;
  EXPECT_FALSE(config_of(axolotl + "shuffle_merged_datasets: false\n").data.shuffle);
  EXPECT_FALSE(config_of(axolotl + "curriculum_sampling: true\n").data.shuffle);
  EXPECT_FALSE(config_of(factory + "disable_shuffling: true\n").data.shuffle);
  EXPECT_TRUE(config_of(axolotl + "shuffle_merged_datasets: true\n").data.shuffle);
  EXPECT_EQ(config_of(factory + "enable_thinking: false\n").data.template_arguments,
            std::vector<std::string>{"enable_thinking = false"});
  EXPECT_EQ(
      config_of(axolotl + "chat_template_kwargs: {effort: low, n: 3}\n").data.template_arguments,
      (std::vector<std::string>{"effort = \"low\"", "n = 3"}));
  EXPECT_EQ(config_of(factory + "moe_aux_loss_coef: 0\n").train.router_aux_loss, 0.0);
  EXPECT_EQ(config_of(factory + "learning_rate: 0\n").optimizer.lr, 0.0);
  EXPECT_EQ(refusal_of(axolotl + "load_in_8bit: false\nrelora: false\n"), "") << "the default";
}

// Goal: NF4 with double quantisation is what bitsandbytes does for these files; what it is not is
// named, and other methods are refused.
TEST_F(OtherKeysOneByOne, OfQuantisationAreTakenAsTheyAre) {
  const std::string factory = std::string(kFactory) + "quantization_bit: 4\n";
  for (const char* method : {"bnb", "bitsandbytes"}) {
    const ConvertedRun run =
        converted(factory + "quantization_method: " + method + "\ndouble_quantization: true\n");
    EXPECT_EQ(load_run_config({}, run.draft.overrides()).adapter.base, AdapterSection::Base::kNf4);
    EXPECT_EQ(why(run.left, "double_quantization"), "");
  }
  for (const char* method : {"hqq", "eetq", "gptq", "awq"}) {
    EXPECT_TRUE(has(refusal_of(factory + "quantization_method: " + method + "\n"),
                    std::string("quantization_method = ") + method));
  }
  const ConvertedRun once = converted(factory + "double_quantization: false\n");
  EXPECT_TRUE(has(why(once.left, "double_quantization"), "quantises the scales too"));
  const std::string trl = std::string(kTrl) + "load_in_4bit: true\nbnb_4bit_quant_type: nf4\n";
  EXPECT_NE(why(converted(trl).left, "use_bnb_nested_quant"), "") << "TRL's default is false";
  const ConvertedRun nested = converted(trl + "use_bnb_nested_quant: true\n");
  EXPECT_EQ(why(nested.left, "use_bnb_nested_quant"), "");
  EXPECT_NE(why(nested.needless, "bnb_4bit_quant_type"), "");
}

// Goal: LoRA+ is a parameter group, with the file's learning rate times its ratio.
TEST_F(OtherKeysOneByOne, OfLoraPlusBecomeAParameterGroup) {
  for (const std::string& text :
       {std::string(kAxolotl) + "learning_rate: 1e-4\nloraplus_lr_ratio: 16\n",
        std::string(kFactory) + "learning_rate: 1.0e-4\nloraplus_lr_ratio: 16.0\n"}) {
    const RunConfig config = config_of(text);
    ASSERT_EQ(config.optimizer.groups.size(), 1u);
    EXPECT_EQ(config.optimizer.groups[0].parameters, std::vector<std::string>{"*.lora_B.weight"});
    EXPECT_EQ(config.optimizer.groups[0].lr, 1.6e-3);
  }
  const RunConfig embedding = config_of(
      std::string(kAxolotl) +
      "learning_rate: 1e-4\nloraplus_lr_ratio: 16\nlora_target_modules: [q_proj, embed_tokens]\n");
  ASSERT_EQ(embedding.optimizer.groups.size(), 2u);
  EXPECT_EQ(embedding.optimizer.groups[1].lr, 1e-6) << "PEFT's default";
  const RunConfig grouped = config_of(
      "base_model: m\ndatasets: [{path: own.jsonl}]\nlr_groups: [{name: o, modules: [o_proj], "
      "lr: 1e-6}]\n");
  ASSERT_EQ(grouped.optimizer.groups.size(), 1u);
  EXPECT_EQ(grouped.optimizer.groups[0].parameters, std::vector<std::string>{"*o_proj*"});
}

// Goal: the other keys that the run file can say.
TEST_F(OtherKeysOneByOne, AreWrittenWhereTheRunFileCanSayThem) {
  const std::string axolotl = kAxolotl;
  EXPECT_EQ(config_of(axolotl + "chat_template_jinja: x.jinja\n").data.chat_template, "x.jinja");
  EXPECT_NE(why(converted(axolotl + "chat_template_jinja: '{% if a %}b{% endif %}'\n").left,
                "chat_template_jinja"),
            "");
  const ConvertedRun warm = converted(axolotl);
  EXPECT_EQ(load_run_config({}, warm.draft.overrides()).schedule.warmup_ratio, 0.03);
  EXPECT_TRUE(has(why(warm.left, "warmup_steps"), "at most 100"));
  EXPECT_EQ(config_of(axolotl + "max_steps: 1000\n").schedule.warmup_steps, 30);
  EXPECT_EQ(config_of(axolotl + "max_steps: 90000\n").schedule.warmup_steps, 100);
  EXPECT_EQ(config_of(axolotl + "gradient_checkpointing: offload\n").offload.activations,
            OffloadSection::Activations::kHost);
  EXPECT_EQ(config_of(axolotl + "batch_size: 12\nmicro_batch_size: 3\n").train.sequences_per_step,
            12);
  EXPECT_EQ(config_of(std::string(kTrl) + "model_revision: v2\n").model.path, "m@v2");
  EXPECT_EQ(config_of(std::string(kFactory) + "split_special_tokens: true\n").data.special_tokens,
            DataSection::SpecialTokens::kText);
  const std::string full = "base_model: m\ndatasets: [{path: own.jsonl}]\n";
  const std::string ends = "unfrozen_parameters: [^model.embed_tokens.weight$, ^lm_head.weight$]\n";
  EXPECT_EQ(config_of(full + ends).train.freeze,
            (std::vector<std::string>{"model.norm.*", "model.layers.*"}));
  EXPECT_TRUE(
      has(refusal_of(full + "unfrozen_parameters: [model.layers.(3|4).mlp]\n"), "--train.freeze="));
  EXPECT_TRUE(has(
      why(converted(std::string(kFactory) + "default_system: Be kind.\n").left, "default_system"),
      "give the rows a system message"));
  EXPECT_TRUE(has(why(converted(std::string(kFactory) + "tool_format: qwen\n").left, "tool_format"),
                  "chat template writes the tools"));
  EXPECT_EQ(config_of(axolotl + "lora_target_modules: '.*\\.[qv]_proj'\n").adapter.targets,
            std::vector<std::string>{R"(re:.*\.[qv]_proj)"});
  EXPECT_EQ(config_of(axolotl + "rl: dpo\nlora_dropout: 0.05\n").adapter.dropout, 0.0)
      << "DPO's trainers disable dropout";
}

// Goal: patterns of what is trained become globs of the same names, or are refused by name.
TEST_F(OtherKeysOneByOne, PatternsOfTrainedParametersBecomeGlobs) {
  const std::string full = "base_model: m\ndatasets: [{path: own.jsonl}]\nunfrozen_parameters: ";
  const std::pair<const char*, const char*> same[] = {
      {"model.layers.3.mlp", "!model.layers.3.mlp*"},
      {"'model.layers.1[0-9]'", "!model.layers.1[0-9]*"},
      {"'model.layers.1[0-9].*'", "!model.layers.1[0-9]*"},
      {"'model.layers.2[0-9]+.block_sparse_moe.gate'",
       "!model.layers.2[0-9].block_sparse_moe.gate*"},
      {"'model.layers.1[0-9]+'", "!model.layers.1[0-9]*"},
      {"'^model.layers.+.mlp.up_proj.weight$'", "!model.layers?*.mlp.up_proj.weight"},
  };
  for (const auto& [pattern, glob] : same) {
    EXPECT_EQ(config_of(full + "[" + pattern + "]\n").train.freeze,
              (std::vector<std::string>{"*", glob}))
        << pattern;
  }
  EXPECT_EQ(config_of(full + "[^lm_head.weight$, 'model.layers.3[01].']\n").train.freeze,
            (std::vector<std::string>{"*", "!lm_head.weight", "!model.layers.3[01].*"}));
  for (const std::string pattern :
       {"^model.embed_tokens.weight$[:32000]", "model.layers.[12]", "model.layers.1[0-9]+.mlp",
        "model.layers.(10|11)", "model.layers.[^1]", "layers.*mlp", "[0-9", "^$", "a[b-z]+$"}) {
    const std::string refusal = refusal_of(full + "['" + pattern + "']\n");
    EXPECT_TRUE(has(refusal, "\"" + pattern + "\" says what no glob can")) << refusal;
  }
}

// Goal: options of a schedule are used or named.
TEST_F(OtherKeysOneByOne, OfTheScheduleAreUsedOrNamed) {
  const std::string axolotl = kAxolotl;
  const ConvertedRun none = converted(axolotl + "lr_scheduler_kwargs: {num_cycles: 2}\n");
  EXPECT_NE(why(none.left, "lr_scheduler_kwargs.num_cycles"), "");
  const ConvertedRun some = converted(axolotl +
                                      "learning_rate: 1e-4\nlr_scheduler: cosine_with_min_lr\n"
                                      "lr_scheduler_kwargs: {min_lr: 1e-5}\n");
  EXPECT_EQ(load_run_config({}, some.draft.overrides()).schedule.min_lr_ratio, 0.1);
  EXPECT_EQ(why(some.left, "lr_scheduler_kwargs.min_lr"), "");
  EXPECT_EQ(config_of(axolotl + "learning_rate: 0\nlr_scheduler: cosine_with_min_lr\n"
                                "lr_scheduler_kwargs: {min_lr: 0}\n")
                .schedule.min_lr_ratio,
            0.0);
}

constexpr const char* kDrives = R"({
  "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 0.3, "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "overlap_comm": true,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/drive", "buffer_count": 4},
    "offload_param": {"device": "nvme", "nvme_path": "/drive"}},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.2}},
  "curriculum_learning": {"enabled": true}})";

// Goal: the settings of DeepSpeed that the file names decide the tiers, and what they train is used
// or named.
TEST_F(OtherKeysOneByOne, OfDeepSpeedAreReadFromItsFile) {
  std::filesystem::create_directory("configs");
  write("configs/ds.json", kDrives);
  const std::string full = "base_model: m\ndatasets: [{path: own.jsonl}]\ndeepspeed: ";
  for (const std::string& text : {full + "configs/ds.json\n", full + kDrives + "\n"}) {
    const ConvertedRun run = converted(text);
    const RunConfig config = load_run_config({}, run.draft.overrides());
    EXPECT_EQ(config.offload.optimizer, OffloadSection::Optimizer::kNvme);
    EXPECT_EQ(config.offload.parameters, OffloadSection::Parameters::kNvme);
    EXPECT_EQ(config.offload.nvme, std::vector<std::string>{"/drive"});
    EXPECT_EQ(config.train.max_grad_norm, 0.3);
    EXPECT_EQ(config.optimizer.weight_decay, 0.2);
    EXPECT_TRUE(has(why(run.left, "deepspeed.curriculum_learning"), "does not know"));
    EXPECT_TRUE(has(why(run.needless, "deepspeed"), "offloads it by itself"));
  }
  write("configs/other.yml", full + "elsewhere/ds.json\n");
  const ConvertedRun beside = convert_run_file("configs/other.yml", {});
  EXPECT_TRUE(has(beside.draft.toml(), "/drive")) << "the JSON file lies beside the other file";
  const ConvertedRun absent = converted(full + "nowhere.json\n");
  EXPECT_TRUE(
      has(absent.needless.front().why + absent.needless.back().why, "nowhere.json is not here"));
  const ConvertedRun packed =
      converted(std::string(kAxolotl) + "load_in_4bit: true\ndeepspeed: configs/ds.json\n");
  EXPECT_NE(why(packed.left, "deepspeed.zero_optimization"), "");
}

// Goal: a refusal names what else would not be converted, so that it is seen at once.
TEST_F(OtherKeysOneByOne, AreAllNamedByARefusal) {
  const std::string found = refusal_of(std::string(kTrl) +
                                       "loss_type: dft\nneftune_noise_alpha: 5\nmade_up: 1\n"
                                       "optim: lion\n");
  for (const char* part : {"loss_type = \"dft\"", "optim = lion",
                           "not converted either: neftune_noise_alpha", "made_up"}) {
    EXPECT_TRUE(has(found, part)) << part << "\n" << found;
  }
}

// Goal: keys of the command line win over the file, and answer what it could not say.
TEST_F(OtherKeysOneByOne, GiveWayToTheCommandLine) {
  write("other.yml", std::string(kAxolotl) +
                         "learning_rate: 1e-4\nnum_epochs: 3\nlr_scheduler: greedy\n"
                         "chat_template: llama3\nval_set_size: 0.1\nlora_r: 32\n");
  const std::vector<std::string> from = {"init", "run.toml", "--replace", "--from", "other.yml"};
  EXPECT_EQ(run_command(from).exit_code, 2) << "the schedule";
  std::vector<std::string> words = from;
  for (const char* key :
       {"--schedule.name=linear", "--train.steps=7", "--data.chat_template=x.jinja",
        "--adapter.r=4", "--optimizer.lr=3e-4", "--data.eval=held.jsonl",
        "--train.sequences_per_step=64", "--log.tensorboard=true"}) {
    words.emplace_back(key);
  }
  const Ended ended = run_command(words);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_FALSE(has(ended.out, "own template is used")) << ended.out;
  EXPECT_FALSE(has(ended.out, "batch of one GPU")) << ended.out;
  const RunConfig config = load_run_config({"run.toml"}, {});
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kLinear);
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.train.epochs, 0.0);
  EXPECT_EQ(config.data.chat_template, "x.jinja");
  EXPECT_EQ(config.adapter.r, 4);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.data.eval, std::vector<std::string>{"held.jsonl"});
  EXPECT_EQ(config.eval.split, 0.0);
  EXPECT_TRUE(config.log.tensorboard);
  std::vector<std::string> full = words;
  full.erase(std::ranges::find(full, "--adapter.r=4"));
  full.emplace_back("--adapter.kind=none");
  ASSERT_EQ(run_command(full).exit_code, 0);
  EXPECT_FALSE(load_run_config({"run.toml"}, {}).adapter.on());
  std::vector<std::string> unknown = from;
  unknown.emplace_back("--train.epoch=1");
  EXPECT_TRUE(has(run_command(unknown).err, "did you mean 'epochs'"));
}

}  // namespace
}  // namespace longshore
