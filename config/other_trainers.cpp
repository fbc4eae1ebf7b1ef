#include "config/other_trainers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

using enum OtherKeyUse;

// Keys that are used alike, with a space between their names.
struct OtherKeys {
  OtherKeyUse use;
  std::string_view text;  // kSame and kComputed: the key of the run file; else the reason
  std::string_view names;
};

constexpr OtherKeys kKeys[] = {
    {kSame, "adapter.dropout", "lora_dropout"},
    {kSame, "checkpoint.keep", "save_total_limit"},
    {kSame, "data.chat_template", "chat_template_path"},
    {kSame, "data.max_rows", "max_samples"},
    {kSame, "data.max_tokens", "cutoff_len max_length max_seq_length sequence_len"},
    {kSame, "data.threads", "dataset_num_proc dataset_processes preprocessing_num_workers"},
    {kSame, "log.every_steps", "logging_steps"},
    {kSame, "log.wandb", "wandb_project"},
    {kSame, "model.path", "base_model model_name_or_path"},
    {kSame, "optimizer.eps", "adam_epsilon"},
    {kSame, "optimizer.lr", "learning_rate"},
    {kSame, "optimizer.weight_decay", "weight_decay"},
    {kSame, "run.dir", "output_dir"},
    {kSame, "run.seed", "seed"},
    {kSame, "schedule.min_lr_ratio", "cosine_min_lr_ratio min_lr_ratio"},
    {kSame, "tokenizer.path", "tokenizer_config tokenizer_name_or_path"},
    {kSame, "train.max_grad_norm", "gradient_clipping max_grad_norm"},
    {kSame, "train.micro_batch", "micro_batch_size per_device_train_batch_size"},
    {kSame, "train.router_aux_loss", "moe_aux_loss_coef router_aux_loss_coef"},
    {kComputed, "adapter.alpha", "lora_alpha"},
    {kComputed, "adapter.alpha_pattern", "lora_alpha_pattern"},
    {kComputed, "adapter.base",
     "bnb_4bit_quant_type bnb_config_kwargs double_quantization load_in_4bit quantization_bit "
     "quantization_method quantization_type use_bnb_nested_quant"},
    {kComputed, "adapter.kind", "adapter finetuning_type peft_use_dora use_dora use_peft"},
    {kComputed, "adapter.layers",
     "lora_layers_to_transform peft_layers_pattern peft_layers_to_transform"},
    {kComputed, "adapter.path", "adapter_name_or_path lora_model_dir"},
    {kComputed, "adapter.r", "lora_r lora_rank"},
    {kComputed, "adapter.rank_pattern", "lora_rank_pattern"},
    {kComputed, "adapter.rslora", "peft_use_rslora use_rslora"},
    {kComputed, "adapter.targets",
     "lora_target lora_target_linear lora_target_modules target_modules"},
    {kComputed, "adapter.train", "additional_target lora_modules_to_save modules_to_save"},
    {kComputed, "checkpoint.every_steps", "save_steps save_strategy"},
    {kComputed, "checkpoint.resume", "resume_from_checkpoint"},
    {kComputed, "data.chat_template", "chat_template chat_template_jinja template"},
    {kComputed, "data.eval", "eval_dataset test_datasets"},
    {kComputed, "data.keys", "dataset_text_field"},
    {kComputed, "data.mask",
     "assistant_only_loss completion_only_loss mask_history train_on_inputs train_on_prompt"},
    {kComputed, "data.mix", "mix_strategy"},
    {kComputed, "data.overlength", "excess_length_strategy"},
    {kComputed, "data.packing", "packing sample_packing"},
    {kComputed, "data.probabilities", "interleave_probs"},
    {kComputed, "data.shuffle",
     "curriculum_sampling disable_shuffling shuffle_merged_datasets train_sampling_strategy"},
    {kComputed, "data.special_tokens", "split_special_tokens"},
    {kComputed, "data.template_arguments", "chat_template_kwargs enable_thinking"},
    {kComputed, "data.train",
     "dataset dataset_config dataset_name dataset_test_split dataset_train_split datasets "
     "pretraining_dataset"},
    {kComputed, "eval.every_steps", "eval_steps eval_strategy evaluation_strategy"},
    {kComputed, "eval.keep_best", "load_best_model_at_end"},
    {kComputed, "eval.patience", "early_stopping_patience early_stopping_steps"},
    {kComputed, "eval.split", "test_split_size val_set_size val_size"},
    {kComputed, "fsdp.recompute", "disable_gradient_checkpointing gradient_checkpointing"},
    {kComputed, "log.tensorboard", "report_to use_tensorboard"},
    {kComputed, "model.path", "model_revision revision_of_model"},
    {kComputed, "offload.activations", "activation_offloading"},
    {kComputed, "optimizer.betas", "adam_beta1 adam_beta2"},
    {kComputed, "optimizer.groups", "loraplus_lr_embedding loraplus_lr_ratio lr_groups"},
    {kComputed, "optimizer.name", "optim optimizer"},
    {kComputed, "precision.compute", "bf16 fp16 pure_bf16"},
    {kComputed, "preference.beta", "beta orpo_alpha pref_beta rl_beta"},
    {kComputed, "preference.gamma", "simpo_gamma"},
    {kComputed, "preference.label_smoothing", "dpo_label_smoothing label_smoothing"},
    {kComputed, "preference.reference", "ref_model"},
    {kComputed, "preference.sft_weight", "cpo_alpha pref_ftx rpo_alpha"},
    {kComputed, "schedule.min_lr_ratio", "lr_scheduler_kwargs"},
    {kComputed, "schedule.name", "lr_scheduler lr_scheduler_type"},
    {kComputed, "schedule.warmup_ratio", "warmup_ratio"},
    {kComputed, "schedule.warmup_steps", "warmup_steps"},
    {kComputed, "tokenizer.add_special_tokens", "add_special_tokens new_special_tokens"},
    {kComputed, "tokenizer.add_tokens", "add_tokens tokens"},
    {kComputed, "train.epochs", "num_epochs num_train_epochs"},
    {kComputed, "train.freeze", "unfrozen_parameters"},
    {kComputed, "train.loss", "dpo_loss_type loss_type pref_loss"},
    {kComputed, "train.sequences_per_step",
     "batch_size gradient_accumulation_steps train_batch_size"},
    {kComputed, "train.steps", "max_steps"},
    {kComputed, "",
     "dataset_dir desirable_weight dpo_loss_weights f_divergence_type kto_chosen_weight "
     "kto_desirable_weight kto_rejected_weight kto_undesirable_weight loss_weights rl stage "
     "undesirable_weight"},
    {kNeedless,
     "Longshore shards the model over the ranks and offloads it by itself ([fsdp], [offload]); "
     "the plan says what fits",
     "accelerator_config context_parallel_size ddp ddp_backend ddp_broadcast_buffers "
     "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout deepcompile deepspeed device_map "
     "dp_replicate_size dp_shard_size fsdp fsdp_config fsdp_final_state_dict_type "
     "fsdp_transformer_layer_cls_to_wrap fsdp_version gpu_memory_limit heads_k_stride "
     "layer_offloading local_rank low_cpu_mem_usage master_addr master_port max_memory "
     "qlora_sharded_model_loading quantization_device_map ray_init_kwargs ray_num_workers "
     "resources_per_worker ring_attn_func sequence_parallel_degree tensor_parallel_size use_ray "
     "world_size"},
    {kNeedless, "it does not change what is trained",
     "adapter_folder auto_find_batch_size auto_resume_from_checkpoints "
     "average_tokens_across_devices axolotl_config_path bench_dataset bench_split bf16_full_eval "
     "compute_accuracy compute_dtype debug disable_dropout disable_tqdm do_bench_eval "
     "do_causal_lm_eval do_eval do_predict do_sample do_train dpo_generate_during_eval "
     "dpo_padding_free dpo_use_logits_to_keep dtype eval_accumulation_steps eval_batch_size "
     "eval_causal_lm_metrics eval_max_new_tokens eval_num_beams eval_on_each_dataset "
     "eval_on_start eval_table_size export_device export_dir export_legacy_format export_size "
     "gc_collect_steps gc_steps generate_during_eval generate_samples generation_max_new_tokens "
     "gradient_checkpointing_kwargs include_effective_tokens_per_second "
     "include_num_input_tokens_seen include_tkps include_tokens_per_second infer_dtype "
     "is_preprocess label_pad_token_id log_level log_on_each_node logging_dir logging_first_step "
     "logging_nan_inf_filter logging_strategy lora_fan_in_fan_out lora_on_cpu lora_task_type "
     "no_remove_unused_columns num_beams num_generation_samples overwrite_output_dir "
     "padding_value per_device_eval_batch_size plot_loss prediction_loss_only print_param_status "
     "print_prompts profiler_steps profiler_steps_start project ray_run_name run_name "
     "save_first_step save_only_model save_safetensors shuffle_before_merging_datasets "
     "shuffle_dataset strict task tokenizer_save_jinja_files torch_dtype torch_empty_cache_steps "
     "total_num_tokens use_kv_cache use_liger_loss use_logits_to_keep use_otel_metrics "
     "use_reentrant_gc"},
    {kNeedless, "Longshore has its own kernels and compiles nothing at run time",
     "attn_implementation attn_implementation_sdpa chunked_cross_entropy "
     "chunked_cross_entropy_num_chunks cut_cross_entropy dpo_use_liger_kernel eager_attention "
     "enable_liger_kernel experts_implementation flash_attention flash_attn "
     "flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_fuse_qkv flash_attn_rms_norm "
     "flex_attention fused_attn_kernel liger_fused_linear_cross_entropy liger_glu_activation "
     "liger_layer_norm liger_rms_norm liger_rope liger_swiglu lora_embedding_kernel "
     "lora_mlp_kernel lora_o_kernel lora_qkv_kernel plugins sage_attention sdp_attention tf32 "
     "tiled_mlp tiled_mlp_num_shards torch_compile torch_compile_backend torch_compile_mode "
     "unsloth_lora_mlp use_kernels use_liger_kernel use_unsloth use_unsloth_gc xformers_attention"},
    {kNeedless, "config.json says it",
     "base_model_config is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
     "is_qwen_derived_model model_type tokenizer_legacy tokenizer_type tokenizer_use_fast "
     "use_fast_tokenizer"},
    {kNeedless,
     "the embedding and the head grow by the rows that added tokens need, without padding, and new "
     "rows begin as the mean of the others",
     "mean_resizing_embeddings resize_token_embeddings_to_32x resize_vocab"},
    {kNeedless, "Longshore batches without padding",
     "batch_flattening eval_packing eval_sample_packing group_by_length length_column_name "
     "multipack_real_batches neat_packing packing_strategy pad_to_multiple_of "
     "pad_to_sequence_len padding_free sample_packing_bin_size sample_packing_group_size"},
    {kNeedless, "models are loaded from the local cache and never uploaded",
     "cache_dir hf_hub_token hf_use_auth_token hub_model_id hub_private_repo hub_revision "
     "hub_strategy hub_token ms_hub_token push_dataset_to_hub push_to_hub"},
    {kNeedless,
     "the run's record is in run.dir; `scripts/follow_metrics` sends it to trackers (to W&B also "
     "log.wandb)",
     "comet_api_key comet_mode comet_project_name comet_workspace hf_mlflow_log_artifacts "
     "mlflow_experiment_name mlflow_run_name mlflow_tracking_uri swanlab_api_key swanlab_mode "
     "swanlab_project swanlab_run_name swanlab_workspace trackio_project_name trackio_run_name "
     "trackio_space_id use_comet use_mlflow use_swanlab use_trackio use_wandb wandb_entity "
     "wandb_log_model wandb_mode wandb_name wandb_run_id wandb_watch"},
    {kNeedless, "the loader of data needs no setting",
     "dataloader_drop_last dataloader_num_workers dataloader_persistent_workers "
     "dataloader_pin_memory dataloader_prefetch_factor"},
    {kNeedless, "rows are tokenised once and kept in data.cache",
     "dataset_keep_in_memory dataset_kwargs dataset_prepared_path dataset_shard_idx "
     "dataset_shard_num overwrite_cache preprocessing_batch_size remove_unused_columns "
     "skip_prepare_dataset tokenized_path"},
    {kNeedless, "Longshore trains the text of the model alone",
     "freeze_language_model freeze_multi_modal_projector freeze_vision_tower image_max_pixels "
     "image_min_pixels media_dir video_max_pixels video_min_pixels"},
    {kNeedless,
     "a run ends by itself after ten steps in a row that are not finite "
     "(train.max_nonfinite_steps)",
     "loss_watchdog_patience loss_watchdog_threshold"},
    {kNeedless, "the reference's log-probabilities are always computed once, before the first step",
     "precompute_ref_batch_size precompute_ref_eval_log_probs precompute_ref_log_probs"},
    {kNeedless, "models are trained by the program, without Python code of theirs",
     "trust_remote_code"},
    {kMissing, "it has no effect in this kind of training",
     "buffer_size freeze_trainable_layers freeze_trainable_modules galore_rank galore_target "
     "ref_model_mixup_alpha ref_model_sync_steps"},
    {kMissing, "Longshore has no such thing; the run trains without it",
     "cosine_constant_lr_ratio ema label_smoothing_factor "
     "lr_quadratic_warmup mixture_of_depths "
     "neftune_noise_alpha noisy_embedding_alpha packing_attention peft_init_lora_weights "
     "peft_layer_replication pissa_convert pissa_init pissa_iter "
     "pref_bco_weight relora_steps rope_scaling rope_theta sample_packing_sequentially "
     "scaling_softmax shift_attn use_asft_loss use_badam use_dft_loss use_eaft use_eaft_loss "
     "use_mup use_pose"},
    {kMissing, "the end and the padding are those of the tokenizer and of the template",
     "efficient_eos eos_token eot_tokens pad_token roles_to_train special_tokens train_on_eos "
     "train_on_eot"},
    {kMissing, "set optimizer.groups", "embedding_lr embedding_lr_scale"},
    {kMissing,
     "Longshore saves and evaluates by steps (checkpoint.every_steps, eval.every_steps); they "
     "are known when the data is prepared",
     "evals_per_epoch saves_per_epoch"},
    {kMissing,
     "a prompt and its answer together have data.max_tokens; data.overlength says what happens "
     "to longer ones",
     "max_completion_length max_prompt_length truncation_mode"},
    {kMissing, "all rows are read; data.max_rows counts them in each file, of data.eval too",
     "max_train_samples"},
    {kMissing,
     "rows without a system message get this one there; here they have what the chat template "
     "writes; give the rows a system message",
     "default_system default_system_message"},
    {kMissing, "the chat template writes the tools (data.chat_template)", "tool_format"},
    {kMissing,
     "what a conversation keeps of earlier thoughts is up to the chat template "
     "(data.chat_template)",
     "preserve_thinking"},
    {kMissing, "repeated rows are counted, and none is left out", "dataset_exact_deduplication"},
    {kMissing, "the run computes in precision.compute and keeps fp32 master weights",
     "bfloat16 float16 fp32_norms fp8 upcast_layernorm upcast_lmhead_output"},
    {kMissing, "rows of every length are trained", "min_sample_len"},
    {kMissing, "eval.keep_best keeps the checkpoint of the lowest evaluation loss",
     "greater_is_better metric_for_best_model"},
    {kRefused,
     "the streaming of data sets is not converted; download the data, and name the files with "
     "--data",
     "dataset_streaming streaming"},
    {kRefused,
     "tokens of the vocabulary are not renamed; do it with transformers, and name the directory of "
     "the new tokenizer with --tokenizer.path",
     "added_tokens_overrides"},
    {kRefused, "Longshore trains a model in full, or adapters of LoRA and DoRA",
     "dequantize ebft kd_trainer lisa_n_layers lora_target_parameters relora spectrum_target "
     "target_parameters use_apollo use_galore use_llama_pro use_muon use_vera"},
    {kRefused,
     "`init --from` converts supervised fine-tuning and losses over preferences whose reference "
     "does not change; docs/preference.md has them",
     "dpo_norm_loss dpo_use_weighting ld_alpha num_generations ppo_epochs "
     "process_reward_model ref_model_adapters ref_model_name_or_path ref_model_quantization_bit "
     "reward_funcs reward_model reward_model_path reward_model_type sync_ref_model trl "
     "use_weighting"},
    {kRefused,
     "quantised bases are adapter.base = \"nf4\" and \"fp8\" under adapters of LoRA or DoRA; "
     "take the model in bf16",
     "gptq load_in_8bit"},
    {kRefused, "without a reference the losses are simpo and orpo (train.loss)", "reference_free"},
};

// The values that ask for nothing where `false`, 0 and "none" are not the default: as JSON.
constexpr std::pair<std::string_view, std::string_view> kUsual[] = {
    {"average_tokens_across_devices", "true"},
    {"freeze_multi_modal_projector", "true"},
    {"freeze_vision_tower", "true"},
    {"include_tkps", "true"},
    {"low_cpu_mem_usage", "true"},
    {"metric_for_best_model", "\"eval_loss\""},
    {"mix_strategy", "\"concat\""},
    {"peft_init_lora_weights", "true"},
    {"save_safetensors", "true"},
    {"tokenizer_save_jinja_files", "true"},
    {"truncation_mode", "\"keep_start\""},
    {"use_fast_tokenizer", "true"},
    {"use_kv_cache", "true"},
    {"use_reentrant_gc", "true"},
};

std::map<std::string_view, OtherKey> keys_by_name() {
  std::map<std::string_view, OtherKey> by_name;
  for (const auto& [use, text, names] : kKeys) {
    const bool has_key = use == kSame || use == kComputed;
    for (size_t begin = 0, end = 0; end < names.size(); begin = end + 1) {
      end = std::min(names.find(' ', begin), names.size());
      const std::string_view name = names.substr(begin, end - begin);
      const auto* const usual =
          std::ranges::find(kUsual, name, &std::pair<std::string_view, std::string_view>::first);
      const OtherKey key{name, has_key ? text : "", use, has_key ? "" : text,
                         usual == std::end(kUsual) ? "" : usual->second};
      LONGSHORE_CHECK(by_name.emplace(name, key).second);
    }
  }
  return by_name;
}

}  // namespace

const OtherKey* find_other_key(std::string_view name) {
  static const std::map<std::string_view, OtherKey> by_name = keys_by_name();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : &found->second;
}

}  // namespace longshore
