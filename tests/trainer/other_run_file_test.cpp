// `init --from`: run files made of the configurations of Axolotl, LLaMA-Factory and TRL. Goal: the
// run file describes the same run, what it cannot say is named with the reason, and a file for
// another kind of training is refused.
#include "trainer/setup/other_run_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/trainer/other_files.h"

namespace longshore {
namespace {

class OtherRunFile : public OtherFiles {};

// ---- Axolotl ----

constexpr const char* kAxolotlFull = R"(
base_model: NousResearch/Meta-Llama-3.1-8B
plugins:
  - axolotl.integrations.liger.LigerPlugin
liger_rope: true
liger_fused_linear_cross_entropy: true
strict: false
chat_template: llama3
datasets:
  - path: mlabonne/FineTome-100k
    type: chat_template
    split: train[:20%]
    field_messages: conversations
    message_property_mappings:
      role: from
      content: value
dataset_prepared_path: last_run_prepared
val_set_size: 0.02
output_dir: ./outputs/out
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
wandb_project:
wandb_entity:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
warmup_steps: 100
evals_per_epoch: 2
saves_per_epoch: 1
weight_decay: 0.0
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_offload_params: true
special_tokens:
  pad_token: <|finetune_right_pad_id|>
)";

TEST_F(OtherRunFile, ConvertsAFullFineTuneOfAxolotl) {
  const ConvertedRun run = converted(kAxolotlFull);
  EXPECT_EQ(run.trainer, "Axolotl");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.model.path, "NousResearch/Meta-Llama-3.1-8B");
  EXPECT_EQ(config.run.dir, "./outputs/out");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"mlabonne/FineTome-100k"});
  EXPECT_EQ(config.eval.split, 0.02);
  EXPECT_EQ(config.data.max_tokens, 4096);
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kDrop);
  EXPECT_TRUE(config.data.packing);
  EXPECT_EQ(config.data.mask, DataSection::Mask::kAuto);
  EXPECT_EQ(config.train.epochs, 1.0);
  EXPECT_EQ(config.train.micro_batch, 2);
  EXPECT_EQ(config.train.sequences_per_step, 8);
  EXPECT_EQ(config.optimizer.lr, 2e-5) << "YAML 1.1 reads a string";
  EXPECT_EQ(config.optimizer.betas, (std::array{0.9, 0.999}));
  EXPECT_EQ(config.offload.state_format, StateFormat::kSplit);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kCosine);
  EXPECT_EQ(config.schedule.min_lr_ratio, 0.0);
  EXPECT_EQ(config.schedule.warmup_steps, 100);
  EXPECT_EQ(config.precision.compute, DType::kBF16);
  EXPECT_FALSE(config.adapter.on());
  EXPECT_TRUE(has(why(run.left, "chat_template"), "data.chat_template"));
  EXPECT_TRUE(has(why(run.left, "datasets[0].split"), "whole split"));
  EXPECT_TRUE(has(why(run.left, "evals_per_epoch"), "eval.every_steps"));
  EXPECT_TRUE(has(run.reminder, "train.sequences_per_step = 8 is the batch of one GPU"));
  EXPECT_TRUE(has(why(run.needless, "fsdp_config"), "offloads it by itself"));
  EXPECT_NE(why(run.needless, "flash_attention"), "");
  EXPECT_EQ(why(run.needless, "wandb_project"), "") << "a key without a value says nothing";
}

constexpr const char* kAxolotlLora = R"(
base_model: Qwen/Qwen2.5-0.5B
datasets:
  - path: data/mine.jsonl
    ds_type: json
    type:
      field_instruction: question
      field_input: passage
      field_output: answer
      format: "Q: {instruction} ({input})\nA: "
test_datasets:
  - path: data/held.jsonl
    ds_type: json
    split: train
adapter: lora
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules:
  - q_proj
  - v_proj
peft_use_rslora: true
lora_modules_to_save:
  - lm_head
sequence_len: 2048
train_on_inputs: true
max_steps: 200
micro_batch_size: 4
optimizer: adamw_bnb_8bit
lr_scheduler: constant_with_warmup
learning_rate: 0.0002
warmup_ratio: 0.1
max_grad_norm: 0.5
save_steps: 50
save_total_limit: 3
eval_steps: 25
early_stopping_patience: 3
deepspeed: deepspeed_configs/zero3.json
seed: 7
)";

TEST_F(OtherRunFile, ConvertsAdaptersOfAxolotl) {
  const ConvertedRun run = converted(kAxolotlLora);
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.adapter.kind, AdapterSection::Kind::kLora);
  EXPECT_EQ(config.adapter.r, 16);
  EXPECT_EQ(config.adapter.alpha, 32.0);
  EXPECT_EQ(config.adapter.dropout, 0.05);
  EXPECT_TRUE(config.adapter.rslora);
  EXPECT_EQ(config.adapter.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.adapter.train, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(config.data.train, std::vector<std::string>{"data/mine.jsonl"});
  EXPECT_EQ(config.data.eval, std::vector<std::string>{"data/held.jsonl"});
  const std::vector<std::string> keys = {"completion = \"answer\"", "context = \"passage\"",
                                         "prompt = \"question\""};
  EXPECT_EQ(config.data.keys, keys);
  EXPECT_EQ(config.data.prompt_template, "Q: {prompt} ({context})\nA: ");
  EXPECT_EQ(config.data.mask, DataSection::Mask::kAll);
  EXPECT_FALSE(config.data.packing);
  EXPECT_EQ(config.train.steps, 200);
  EXPECT_EQ(config.train.epochs, 0.0);
  EXPECT_EQ(config.train.max_grad_norm, 0.5);
  EXPECT_EQ(config.offload.state_format, StateFormat::kSplitInt8);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kConstant);
  EXPECT_EQ(config.schedule.warmup_in(config.train.steps), 20);
  EXPECT_EQ(config.checkpoint.every_steps, 50);
  EXPECT_EQ(config.checkpoint.keep, 3);
  EXPECT_EQ(config.eval.every_steps, 25);
  EXPECT_EQ(config.eval.patience, 3);
  EXPECT_EQ(config.run.seed, 7);
  EXPECT_TRUE(has(why(run.needless, "deepspeed"), "offloads it by itself"));
}

// Goal: a file for a quantised model or for rewards names each of them, and writes nothing.
TEST_F(OtherRunFile, RefusesWhatWouldBeAnotherRunOfAxolotl) {
  const std::string found = refusal_of(R"(
base_model: meta-llama/Llama-3.2-1B
load_in_8bit: false
load_in_4bit: true
rl: grpo
datasets:
  - path: Intel/orca_dpo_pairs
    type: chatml.intel
optimizer: lion_8bit
lr_scheduler: greedy
learning_rate: 0.0002
)");
  for (const char* part :
       {"load_in_4bit", "rl = grpo", "not rewards", "optim = lion_8bit", "greedy"}) {
    EXPECT_TRUE(has(found, part)) << part << "\n" << found;
  }
  EXPECT_FALSE(has(found, "load_in_8bit")) << "it is false";
}

// A base in 4 bits under adapters is adapter.base, however the other trainer spells it.
TEST_F(OtherRunFile, TakesQlora) {
  const std::string axolotl =
      "base_model: m\ndatasets:\n  - path: own.jsonl\n    type: alpaca\nadapter: ";
  const std::string factory =
      "model_name_or_path: m\nstage: sft\ndataset: nowhere\nquantization_bit: ";
  for (const std::string& text :
       {axolotl + "qlora\n", axolotl + "lora\nload_in_4bit: true\n", factory + "4\n"}) {
    EXPECT_EQ(config_of(text, {.data = {"own.jsonl"}}).adapter.base, AdapterSection::Base::kNf4)
        << text;
  }
  EXPECT_EQ(config_of(axolotl + "lora\n", {.data = {"own.jsonl"}}).adapter.base,
            AdapterSection::Base::kPublished);
  EXPECT_TRUE(has(refusal_of(factory + "8\n"), "quantization_bit = 8"));
}

// ---- LLaMA-Factory ----

constexpr const char* kFactoryFull = R"(
### model
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json

### dataset
dataset: chats, shared
template: qwen
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4

### output
output_dir: saves/qwen2_5-7b/full/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null

### eval
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 200
)";

TEST_F(OtherRunFile, ConvertsAFullFineTuneOfLlamaFactory) {
  std::filesystem::create_directory("data");
  write("data/dataset_info.json", kDatasetInfo);
  const ConvertedRun run = converted(kFactoryFull);
  EXPECT_EQ(run.trainer, "LLaMA-Factory");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.data.train,
            (std::vector<std::string>{"data/chats.json", "owner/chats:en:train"}));
  EXPECT_EQ(config.data.keys, std::vector<std::string>{"messages = \"talk\""});
  EXPECT_EQ(config.data.max_tokens, 2048);
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kTruncate);
  EXPECT_FALSE(config.data.packing);
  EXPECT_EQ(config.data.threads, 16);
  EXPECT_EQ(config.train.sequences_per_step, 2);
  EXPECT_EQ(config.train.epochs, 3.0);
  EXPECT_EQ(config.optimizer.lr, 1e-5);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kCosine);
  EXPECT_EQ(config.schedule.min_lr_ratio, 0.0);
  EXPECT_EQ(config.log.every_steps, 10);
  EXPECT_EQ(config.checkpoint.every_steps, 500);
  EXPECT_EQ(config.eval.split, 0.1);
  EXPECT_EQ(config.eval.every_steps, 200);
  EXPECT_FALSE(config.adapter.on());
  EXPECT_TRUE(has(why(run.left, "template"), "own chat template"));
  EXPECT_EQ(config.data.max_rows, 1000);
  EXPECT_EQ(why(run.left, "max_samples"), "");
  EXPECT_EQ(config.schedule.warmup_ratio, 0.1);
  EXPECT_NE(why(run.needless, "deepspeed"), "");
}

// Goal: LLaMA-Factory trains adapters where its file names no other kind, with its own defaults.
TEST_F(OtherRunFile, ConvertsAdaptersOfLlamaFactory) {
  std::filesystem::create_directory("sets");
  write("sets/dataset_info.json", kDatasetInfo);
  const ConvertedRun run = converted(R"(
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
lora_rank: 8
lora_target: q_proj,v_proj
use_dora: true
dataset: rows
dataset_dir: sets
template: llama3
mask_history: true
output_dir: saves/llama3-8b/lora/sft
learning_rate: 1.0e-4
max_steps: 30
warmup_ratio: 0.1
fp16: true
neftune_noise_alpha: 5
)");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.adapter.kind, AdapterSection::Kind::kDora);
  EXPECT_EQ(config.adapter.r, 8);
  EXPECT_EQ(config.adapter.alpha, 16.0) << "twice the rank";
  EXPECT_EQ(config.adapter.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.data.train, std::vector<std::string>{"sets/rows.json"});
  EXPECT_EQ(config.data.keys, (std::vector<std::string>{"completion = \"a\"", "prompt = \"q\""}));
  EXPECT_EQ(config.data.mask, DataSection::Mask::kLast);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kLinear);
  EXPECT_EQ(config.schedule.warmup_in(config.train.steps), 3);
  EXPECT_EQ(config.train.micro_batch, 8);
  EXPECT_TRUE(has(why(run.left, "neftune_noise_alpha"), "trains without it"));
  EXPECT_TRUE(has(why(run.left, "fp16"), "bf16"));
  EXPECT_EQ(config.data.prompt_template, "chat");
  EXPECT_EQ(why(run.left, "dataset rows"), "") << "its template writes them, here too";
}

// Goal: all columns that rows of LLaMA-Factory may have are read under the names of the data set.
TEST_F(OtherRunFile, ConvertsTheColumnsOfJudgedRowsOfLlamaFactory) {
  std::filesystem::create_directory("data");
  write("data/dataset_info.json", kDatasetInfo);
  const ConvertedRun run = converted(
      "model_name_or_path: m\nstage: kto\ntemplate: llama3\ndataset: judged\noutput_dir: out\n");
  EXPECT_EQ(
      load_run_config({}, run.draft.overrides()).data.keys,
      (std::vector<std::string>{"completion = \"a\"", "history = \"before\"", "label = \"liked\"",
                                "prompt = \"q\"", "system = \"rules\""}));
  EXPECT_EQ(why(run.left, "dataset judged"), "");
}

TEST_F(OtherRunFile, RefusesWhatWouldBeAnotherRunOfLlamaFactory) {
  std::filesystem::create_directory("data");
  write("data/dataset_info.json", kDatasetInfo);
  const std::string found = refusal_of(R"(
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
stage: ppo
finetuning_type: freeze
dataset: pairs, nowhere
reward_model: saves/reward
template: llama3
output_dir: saves/x
)");
  for (const char* part : {"quantization_bit", "stage = ppo", "finetuning_type = freeze",
                           "reward_model", "data/dataset_info.json does not name it"}) {
    EXPECT_TRUE(has(found, part)) << part << "\n" << found;
  }
  const std::string named = "model_name_or_path: m\nstage: sft\ndataset: nowhere\n";
  EXPECT_TRUE(has(refusal_of(named), "--data"));
  EXPECT_EQ(config_of(named, {.data = {"own.jsonl"}}).data.train,
            std::vector<std::string>{"own.jsonl"});
}

// ---- TRL ----

// Goal: arguments of TRL as JSON, as `trl sft` and transformers write them.
TEST_F(OtherRunFile, ConvertsArgumentsOfTrl) {
  const ConvertedRun run = converted(R"({
    "model_name_or_path": "Qwen/Qwen2-0.5B", "dataset_name": "trl-lib/Capybara",
    "learning_rate": 2.0e-4, "num_train_epochs": 1, "packing": true, "max_length": 2048,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8,
    "eos_token": "<|im_end|>", "eval_strategy": "steps", "eval_steps": 100, "use_peft": true,
    "lora_r": 32, "lora_alpha": 16, "output_dir": "Qwen2-0.5B-SFT", "bf16": false,
    "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "push_to_hub": true, "report_to": ["wandb", "tensorboard"], "activation_offloading": true})");
  EXPECT_EQ(run.trainer, "TRL");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.data.train, std::vector<std::string>{"trl-lib/Capybara"});
  EXPECT_EQ(config.data.eval, std::vector<std::string>{"trl-lib/Capybara:test"});
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kTruncate);
  EXPECT_EQ(config.train.sequences_per_step, 16);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kCosine);
  EXPECT_EQ(config.schedule.min_lr_ratio, 0.1);
  EXPECT_EQ(config.precision.compute, DType::kF32);
  EXPECT_EQ(config.adapter.r, 32);
  EXPECT_EQ(config.adapter.dropout, 0.05);
  EXPECT_EQ(config.adapter.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.offload.activations, OffloadSection::Activations::kHost);
  EXPECT_TRUE(config.log.tensorboard);
  EXPECT_EQ(config.eval.every_steps, 100);
  EXPECT_TRUE(has(why(run.left, "eos_token"), "tokenizer"));
  EXPECT_TRUE(has(why(run.left, "assistant_only_loss"), "data.mask = \"all\""));
  EXPECT_NE(why(run.needless, "push_to_hub"), "");
}

// ---- Mixes ----

// Goal: LLaMA-Factory's strategies of datasets.interleave_datasets become data.mix.
TEST_F(OtherRunFile, ConvertsMixesOfLlamaFactory) {
  const std::string two =
      "model_name_or_path: m\nstage: sft\ntemplate: qwen\ndataset: a.jsonl,b.jsonl\n";
  const RunConfig under =
      config_of(two + "mix_strategy: interleave_under\ninterleave_probs: 0.7,0.3\n");
  EXPECT_EQ(under.data.mix, DataSection::Mix::kExhaust);
  EXPECT_EQ(under.data.probabilities, (std::vector<double>{0.7, 0.3}));
  const RunConfig over = config_of(two + "mix_strategy: interleave_over\n");
  EXPECT_EQ(over.data.mix, DataSection::Mix::kRestart);
  EXPECT_TRUE(over.data.probabilities.empty()) << "equal shares in both";
  const ConvertedRun once =
      converted(two + "mix_strategy: interleave_once\ninterleave_probs: 0.7,0.3\n");
  EXPECT_TRUE(has(why(once.needless, "mix_strategy"), "each row is read once"));
  EXPECT_NE(why(once.needless, "interleave_probs"), "");
  EXPECT_EQ(config_of(two + "mix_strategy: concat\n").data.mix, DataSection::Mix::kConcat);
  EXPECT_NE(why(converted(two + "interleave_probs: 0.7,0.3\n").left, "interleave_probs"), "");
  EXPECT_NE(why(converted(two + "mix_strategy: other\n").left, "mix_strategy"), "");
  const ConvertedRun single = converted(
      "model_name_or_path: m\nstage: sft\ntemplate: qwen\ndataset: a.jsonl\n"
      "mix_strategy: interleave_over\n");
  EXPECT_TRUE(has(why(single.needless, "mix_strategy"), "one data set"));
  for (const char* shares : {"0.7", "0.7,0.2,0.1", "1.0,0", "some,0.5", "-1,2"}) {
    const std::string text = two + "mix_strategy: interleave_under\ninterleave_probs: " + shares;
    EXPECT_TRUE(
        has(refusal_of(text + "\n"), "interleave_probs: expected a number above 0 for each"))
        << shares;
  }
}

// Goal: TRL's fractions, of any sum, are shares of which no data set is read twice.
TEST_F(OtherRunFile, ConvertsFractionsOfTrl) {
  const RunConfig config = config_of(
      "model_name_or_path: m\ndatasets: [{path: a.jsonl, fraction: 3}, {path: b.jsonl, fraction: "
      "1}]\n");
  EXPECT_EQ(config.data.mix, DataSection::Mix::kExhaust);
  EXPECT_EQ(config.data.probabilities, (std::vector<double>{0.75, 0.25}));
  EXPECT_TRUE(has(refusal_of("model_name_or_path: m\ndatasets: [{path: a.jsonl, fraction: 0.5}, "
                             "{path: b.jsonl}]\n"),
                  "datasets[].fraction: expected a number above 0"));
  EXPECT_NE(
      why(converted("model_name_or_path: m\ndatasets: [{path: a.jsonl, fraction: 1}]\n").needless,
          "datasets[].fraction"),
      "");
}

// ---- Faults ----

// Goal: what cannot be read is refused with the place; a value out of range names the key.
TEST_F(OtherRunFile, NamesFaultsOfTheFile) {
  EXPECT_TRUE(has(refusal_of("just: [\n a, 1]\n"), "no file of Axolotl"));
  EXPECT_TRUE(has(refusal_of("- a\n"), "expected the keys"));
  EXPECT_THROW(converted("base_model: [\n"), DataError);
  const std::string start = "base_model: m\ndatasets: [{path: a/b, type: alpaca}]\n";
  EXPECT_EQ(config_of(start).data.prompt_template, "alpaca");
  EXPECT_TRUE(has(refusal_of(start + "learning_rate: fast\n"), "learning_rate: expected a number"));
  EXPECT_TRUE(has(refusal_of(start + "sequence_len: 1\n"), "data.max_tokens"));
  EXPECT_TRUE(has(why(converted(start + "made_up: 3\n").left, "made_up"), "does not know"));
}

// Goal: keys that need others in the run file do not make a run file that is refused.
TEST_F(OtherRunFile, KeysThatNeedOthersAreLeftOutWithoutThem) {
  const std::string start = "base_model: m\ndatasets: [{path: a/b, type: alpaca}]\n";
  const ConvertedRun no_data = converted(start + "eval_steps: 20\nearly_stopping_patience: 2\n");
  EXPECT_TRUE(has(why(no_data.needless, "eval_steps"), "no data to evaluate"));
  const ConvertedRun by_epoch =
      converted(start + "val_set_size: 0.1\neval_strategy: epoch\nload_best_model_at_end: true\n");
  EXPECT_TRUE(has(why(by_epoch.left, "load_best_model_at_end"), "eval.every_steps"));
  const RunConfig going_on =
      config_of(start + "adapter: lora\nlora_r: 16\nlora_model_dir: runs/a/adapter\n");
  EXPECT_EQ(going_on.adapter.path, "runs/a/adapter");
  EXPECT_EQ(going_on.adapter.kind, AdapterSection::Kind::kLora);
  EXPECT_FALSE(config_of(start + "lora_r: 16\nlora_alpha: 8\n").adapter.on());
}

// Goal: the command writes a run file that loads, says what it left out, and overwrites nothing.
TEST_F(OtherRunFile, InitWritesTheRunFile) {
  write("other.yml", kAxolotlLora);
  const Ended ended =
      run_command({"init", "mine.toml", "--from", "other.yml", "--dir", "runs/own"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, "written: mine.toml")) << ended.out;
  EXPECT_TRUE(has(ended.out, "deepspeed: Longshore shards")) << ended.out;
  const RunConfig config = load_run_config({"mine.toml"}, {});
  EXPECT_EQ(config.run.dir, "runs/own");
  EXPECT_EQ(config.adapter.r, 16);
  EXPECT_EQ(run_command({"init", "mine.toml", "--from", "other.yml"}).exit_code, 2);
  write("other.yml", kAxolotlLora + std::string("made_up: 3\n"));
  const Ended said =
      run_command({"init", "mine.toml", "--replace", "--json", "--from", "other.yml"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  const Json object = Json::parse(said.out);
  EXPECT_EQ(object.at("from"), "Axolotl");
  EXPECT_FALSE(object.at("not_converted").empty());
  write("other.yml", "base_model: m\nrl: grpo\n");
  const Ended refused = run_command({"init", "none.toml", "--from", "other.yml"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists("none.toml"));
}

}  // namespace
}  // namespace longshore
