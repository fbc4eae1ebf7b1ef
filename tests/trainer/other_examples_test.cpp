// Files as the examples of LLaMA-Factory, Axolotl and TRL have them, made of their keys. Goal: each
// converts, to the run that it describes, and what it cannot say is a list that somebody reads.
#include "tests/trainer/other_files.h"

namespace longshore {
namespace {

class OtherExamples : public OtherFiles {
 protected:
  OtherExamples() {
    std::filesystem::create_directory("data");
    write("data/dataset_info.json", R"({
      "identity": {"file_name": "identity.json"},
      "alpaca_en_demo": {"file_name": "alpaca_en_demo.json"},
      "c4_demo": {"file_name": "c4_demo.jsonl", "columns": {"prompt": "text"}},
      "dpo_en_demo": {"file_name": "dpo_en_demo.json", "ranking": true, "formatting": "sharegpt",
        "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}}})");
  }

  // Returns the keys that are not converted and may change what is trained.
  static std::vector<std::string> left_of(const ConvertedRun& run) {
    std::vector<std::string> keys;
    for (const NotConverted& entry : run.left) {
      keys.insert(keys.end(), entry.keys.begin(), entry.keys.end());
    }
    std::ranges::sort(keys);
    return keys;
  }
  static RunConfig config_of(const ConvertedRun& run) {
    return load_run_config({}, run.draft.overrides());
  }
};

using Keys = std::vector<std::string>;

// ---- LLaMA-Factory ----

constexpr const char* kFactoryRun = R"(
trust_remote_code: true
do_train: true
template: qwen3_nothink
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: saves/out
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
)";

TEST_F(OtherExamples, OfLlamaFactoryForAdapters) {
  const std::string model = "model_name_or_path: Qwen/Qwen3-4B-Instruct-2507\n";
  const std::string lora = model + kFactoryRun +
                           "stage: sft\nfinetuning_type: lora\nlora_rank: 8\nlora_target: all\n"
                           "dataset: identity,alpaca_en_demo\nlearning_rate: 1.0e-4\n";
  const Keys expected = {"template"};
  const ConvertedRun plain = converted(lora);
  EXPECT_EQ(left_of(plain), expected);
  const RunConfig config = config_of(plain);
  EXPECT_EQ(config.data.train, (Keys{"data/identity.json", "data/alpaca_en_demo.json"}));
  EXPECT_EQ(config.data.prompt_template, "chat");
  EXPECT_EQ(config.adapter.alpha, 16.0);
  EXPECT_EQ(config.train.sequences_per_step, 8);
  EXPECT_EQ(config.schedule.warmup_ratio, 0.1);
  EXPECT_EQ(config.train.epochs, 3.0);

  const ConvertedRun packed = converted(lora + "quantization_bit: 4\nquantization_method: bnb\n");
  EXPECT_EQ(left_of(packed), expected);
  EXPECT_EQ(config_of(packed).adapter.base, AdapterSection::Base::kNf4);

  const ConvertedRun plus = converted(lora + "loraplus_lr_ratio: 16.0\n");
  EXPECT_EQ(left_of(plus), expected);
  EXPECT_EQ(config_of(plus).optimizer.groups.at(0).lr, 1.6e-3);
}

TEST_F(OtherExamples, OfLlamaFactoryForTheWholeModel) {
  const std::string model = "model_name_or_path: Qwen/Qwen3-4B-Instruct-2507\n";
  std::filesystem::create_directories("examples/deepspeed");
  write("examples/deepspeed/ds_z3_offload_config.json", R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": true, "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "offload_param": {"device": "cpu", "pin_memory": true}, "sub_group_size": 1e9}})");
  const ConvertedRun full = converted(
      model + kFactoryRun +
      "stage: sft\nfinetuning_type: full\ndataset: identity,alpaca_en_demo\nlearning_rate: 1.0e-5\n"
      "deepspeed: examples/deepspeed/ds_z3_offload_config.json\n");
  EXPECT_EQ(left_of(full), Keys{"template"});
  EXPECT_FALSE(config_of(full).adapter.on());
  EXPECT_EQ(config_of(full).offload.optimizer, OffloadSection::Optimizer::kHost);

  const ConvertedRun pretrain =
      converted(model + kFactoryRun + "stage: pt\nfinetuning_type: lora\ndataset: c4_demo\n");
  EXPECT_TRUE(config_of(pretrain).data.packing) << "its default in this stage";
  EXPECT_EQ(config_of(pretrain).data.keys, Keys{"prompt = \"text\""});
}

TEST_F(OtherExamples, OfLlamaFactoryForPreferences) {
  const std::string start = std::string("model_name_or_path: Qwen/Qwen3-4B-Instruct-2507\n") +
                            kFactoryRun +
                            "finetuning_type: lora\nlora_rank: 8\nlora_target: all\n"
                            "pref_beta: 0.1\nlearning_rate: 5.0e-6\n";
  const ConvertedRun dpo =
      converted(start + "stage: dpo\npref_loss: sigmoid\ndataset: dpo_en_demo\n");
  EXPECT_EQ(left_of(dpo), Keys{"template"});
  EXPECT_EQ(config_of(dpo).train.loss, LossKind::kDpo);
  EXPECT_EQ(config_of(dpo).preference.beta, 0.1);
  EXPECT_EQ(config_of(dpo).optimizer.lr, 5e-6);
}

// ---- Axolotl ----

constexpr const char* kAxolotlRun = R"(
base_model: NousResearch/Llama-3.2-1B
dataset_prepared_path: last_run_prepared
output_dir: ./outputs/out
sequence_len: 2048
eval_sample_packing: true
wandb_project:
wandb_entity:
gradient_accumulation_steps: 2
micro_batch_size: 2
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
resume_from_checkpoint:
logging_steps: 1
attn_implementation: flash_attention_2
warmup_ratio: 0.1
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
)";

TEST_F(OtherExamples, OfAxolotl) {
  const std::string lora =
      "lora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\nlora_target_modules:\n  - gate_proj\n"
      "  - down_proj\n";
  const std::string alpaca = "datasets:\n  - path: teknium/GPT4-LLM-Cleaned\n    type: alpaca\n";
  const ConvertedRun adapters =
      converted(kAxolotlRun + alpaca + lora +
                "adapter: lora\nval_set_size: 0.1\nsample_packing: true\nnum_epochs: 1\n"
                "optimizer: adamw_8bit\nevals_per_epoch: 4\nloss_watchdog_threshold: 5.0\n"
                "peft_layers_to_transform: [0, 3]\npeft_layers_pattern: layers\n"
                "lora_rank_pattern: {down_proj: 4}\nlora_alpha_pattern: {down_proj: 2.5}\n");
  EXPECT_EQ(left_of(adapters), (Keys{"evals_per_epoch", "saves_per_epoch", "special_tokens"}));
  const RunConfig config = config_of(adapters);
  EXPECT_EQ(config.data.prompt_template, "alpaca");
  EXPECT_EQ(config.adapter.targets, (Keys{"gate_proj", "down_proj"}));
  EXPECT_EQ(config.adapter.layers, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(config.adapter.rank_pattern, (std::vector<PatternNumber>{{"down_proj", 4.0}}));
  EXPECT_EQ(config.adapter.alpha_pattern, (std::vector<PatternNumber>{{"down_proj", 2.5}}));
  EXPECT_EQ(config.offload.state_format, StateFormat::kSplitInt8);
  EXPECT_EQ(config.eval.split, 0.1);
  EXPECT_TRUE(config.data.packing);

  const ConvertedRun packed =
      converted(kAxolotlRun + alpaca + lora + "adapter: qlora\nload_in_8bit: false\n" +
                "load_in_4bit: true\nnum_epochs: 1\noptimizer: paged_adamw_32bit\n");
  EXPECT_EQ(config_of(packed).adapter.base, AdapterSection::Base::kNf4);
  EXPECT_EQ(left_of(packed), (Keys{"saves_per_epoch", "special_tokens"}));

  const ConvertedRun judged = converted(
      kAxolotlRun + lora +
      "adapter: qlora\nload_in_4bit: true\nrl: kto\nrl_beta: 0.5\nkto_desirable_weight: 0.2\n"
      "remove_unused_columns: false\nnum_epochs: 1\noptimizer: adamw_8bit\nsample_packing: false\n"
      "datasets:\n  - path: argilla/kto\n    type: llama3.ultra\n    split: train\n");
  EXPECT_EQ(config_of(judged).train.loss, LossKind::kKto);
  EXPECT_EQ(config_of(judged).preference.desirable_weight, 0.2);
  EXPECT_EQ(left_of(judged), (Keys{"datasets[0].type = llama3.ultra", "lora_dropout",
                                   "saves_per_epoch", "special_tokens"}));
}

// ---- TRL ----

TEST_F(OtherExamples, OfTrl) {
  const ConvertedRun least = converted(
      "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: stanfordnlp/imdb\nreport_to: none\n"
      "learning_rate: 0.0001\nlr_scheduler_type: cosine\n");
  EXPECT_EQ(left_of(least), Keys{"assistant_only_loss"});
  EXPECT_EQ(config_of(least).optimizer.lr, 1e-4);
  EXPECT_EQ(config_of(least).schedule.min_lr_ratio, 0.0);

  const std::string run =
      "model_name_or_path: Qwen/Qwen2-0.5B-Instruct\nper_device_train_batch_size: 2\n"
      "gradient_accumulation_steps: 8\nlogging_steps: 25\neval_strategy: steps\neval_steps: 50\n"
      "output_dir: out\nno_remove_unused_columns: true\nuse_peft: true\nlora_r: 32\nlora_alpha: "
      "16\n"
      "gradient_checkpointing: true\n";
  const ConvertedRun sft =
      converted(run + "dataset_name: trl-lib/Capybara\npacking: true\nassistant_only_loss: true\n");
  EXPECT_EQ(left_of(sft), Keys{"lora_target_modules"});
  EXPECT_EQ(config_of(sft).eval.every_steps, 50);
  const ConvertedRun dpo = converted(
      run + "dataset_name: trl-lib/ultrafeedback_binarized\nbeta: 0.1\nlearning_rate: 5.0e-6\n");
  EXPECT_EQ(left_of(dpo), (Keys{"beta", "lora_target_modules"}));
  EXPECT_EQ(config_of(dpo).train.loss, LossKind::kDpo);
  EXPECT_EQ(config_of(dpo).adapter.dropout, 0.0);
}

}  // namespace
}  // namespace longshore
