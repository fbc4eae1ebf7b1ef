// Losses over pairs of answers in files of the other trainers.
#include "tests/trainer/other_files.h"

namespace longshore {
namespace {

class OtherPreferences : public OtherFiles {};

// Goal: the DPO example of Axolotl becomes the same run; the types of its rows need no key.
TEST_F(OtherPreferences, AreConvertedFromAxolotl) {
  const std::string start =
      "base_model: m\ndatasets:\n  - path: Intel/orca_dpo_pairs\n"
      "    split: train\n    type: chatml.intel\n";
  const ConvertedRun run = converted(start +
                                     "rl: dpo\nrl_beta: 0.2\ndpo_label_smoothing: 0.1\n"
                                     "learning_rate: 5e-6\n");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.train.loss, LossKind::kDpo);
  EXPECT_EQ(config.preference.beta, 0.2);
  EXPECT_EQ(config.preference.label_smoothing, 0.1);
  EXPECT_TRUE(config.preference.is_start());
  EXPECT_EQ(config.optimizer.lr, 5e-6);
  EXPECT_EQ(config.data.train, std::vector<std::string>{"Intel/orca_dpo_pairs"});
  EXPECT_TRUE(has(why(run.left, "datasets[0].type = chatml.intel"), "chat template"));
  EXPECT_EQ(config_of(start + "rl: ipo\n").train.loss, LossKind::kIpo);
  const RunConfig orpo = config_of(start + "rl: orpo\norpo_alpha: 0.3\n");
  EXPECT_EQ(orpo.train.loss, LossKind::kOrpo);
  EXPECT_EQ(orpo.preference.beta, 0.3);
  const ConvertedRun simpo =
      converted(start + "rl: simpo\nrl_beta: 2.0\nsimpo_gamma: 0.8\ncpo_alpha: 0.5\n");
  const RunConfig margins = load_run_config({}, simpo.draft.overrides());
  EXPECT_EQ(margins.train.loss, LossKind::kSimpo);
  EXPECT_EQ(margins.preference.gamma, 0.8);
  EXPECT_EQ(margins.preference.sft_weight, 0.5);
  EXPECT_EQ(config_of(start + "rl: simpo\n").preference.sft_weight, 1.0) << "TRL's default";
  EXPECT_EQ(config_of(start + "rl: dpo\nrpo_alpha: 0.25\n").preference.sft_weight, 0.25);
  const RunConfig added =
      config_of(start + "rl: dpo\ndpo_loss_type: [ipo, sft]\ndpo_loss_weights: [1.0, 0.75]\n");
  EXPECT_EQ(added.train.loss, LossKind::kIpo);
  EXPECT_EQ(added.preference.sft_weight, 0.75);
  const RunConfig going_on =
      config_of(start + "rl: dpo\nadapter: lora\nlora_model_dir: runs/a/adapter\n");
  EXPECT_TRUE(going_on.preference.is_adapter_off());
}

// Goal: the DPO example of LLaMA-Factory becomes the same run, with its data set of rankings.
TEST_F(OtherPreferences, AreConvertedFromLlamaFactory) {
  std::filesystem::create_directory("data");
  write("data/dataset_info.json", kDatasetInfo);
  const std::string start =
      "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: dpo\ndo_train: true\n"
      "finetuning_type: lora\nlora_rank: 8\nlora_target: all\ndataset: pairs\ntemplate: llama3\n"
      "pref_beta: 0.2\nlearning_rate: 5.0e-6\n";
  const ConvertedRun run = converted(start + "pref_loss: sigmoid\npref_ftx: 0.5\n");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.train.loss, LossKind::kDpo);
  EXPECT_EQ(config.preference.beta, 0.2);
  EXPECT_EQ(config.data.train, std::vector<std::string>{"data/pairs.json"});
  EXPECT_EQ(config.data.keys, std::vector<std::string>{"chosen = \"good\""});
  EXPECT_EQ(config.preference.sft_weight, 0.5);
  EXPECT_TRUE(has(why(run.left, "pref_ftx"), "mean over the tokens of each chosen answer"));
  const ConvertedRun odds = converted(start + "pref_loss: orpo\npref_ftx: 0.5\n");
  EXPECT_EQ(load_run_config({}, odds.draft.overrides()).preference.sft_weight, 0.0);
  EXPECT_TRUE(has(why(odds.left, "pref_ftx"), "no SFT loss to orpo"));
  EXPECT_EQ(config_of(start + "pref_loss: orpo\n").train.loss, LossKind::kOrpo);
  EXPECT_TRUE(has(refusal_of(start + "pref_loss: hinge\n"), "hinge"));
  EXPECT_EQ(config_of(start + "ref_model: models/other\n").preference.reference, "models/other");
  EXPECT_TRUE(config_of(start + "adapter_name_or_path: saves/sft\n").preference.is_adapter_off());
}

// Goal: arguments of DPOConfig become the same run, with the rate that TRL takes by default.
TEST_F(OtherPreferences, AreConvertedFromTrl) {
  const std::string start =
      "model_name_or_path: Qwen/Qwen2-0.5B-Instruct\n"
      "dataset_name: trl-lib/ultrafeedback_binarized\n";
  const ConvertedRun run = converted(start +
                                     "beta: 0.2\nlabel_smoothing: 0.1\n"
                                     "max_prompt_length: 512\nmax_length: 1024\n");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.train.loss, LossKind::kDpo);
  EXPECT_EQ(config.preference.beta, 0.2);
  EXPECT_EQ(config.preference.label_smoothing, 0.0);
  EXPECT_EQ(config.optimizer.lr, 1e-6);
  EXPECT_EQ(config.data.max_tokens, 1024);
  EXPECT_TRUE(has(why(run.left, "label_smoothing"), "no notice"));
  EXPECT_TRUE(has(why(run.left, "max_prompt_length"), "data.max_tokens"));
  const RunConfig robust = config_of(start + "loss_type: robust\nlabel_smoothing: 0.1\n");
  EXPECT_EQ(robust.train.loss, LossKind::kDpoRobust);
  EXPECT_EQ(robust.preference.label_smoothing, 0.1);
  EXPECT_EQ(config_of(start + "loss_type: [ipo]\n").train.loss, LossKind::kIpo);
  EXPECT_TRUE(has(refusal_of(start + "loss_type: exo_pair\n"), "exo_pair"));
  EXPECT_TRUE(has(refusal_of(start + "beta: 0.1\nreference_free: true\n"), "simpo and orpo"));
  EXPECT_TRUE(has(refusal_of(start + "beta: 0.1\nsync_ref_model: true\n"), "does not change"));
  EXPECT_EQ(config_of(start + "loss_type: nll\n").train.loss, LossKind::kSft);
  EXPECT_EQ(config_of(start + "beta: 0.1\nrpo_alpha: 0.5\n").preference.sft_weight, 0.5);
}

// Goal: TRL's list of losses becomes a loss and its SFT term; weights are relative to that loss.
TEST_F(OtherPreferences, HaveTheSftTermOfTrl) {
  const std::string start =
      "model_name_or_path: Qwen/Qwen2-0.5B-Instruct\n"
      "dataset_name: trl-lib/ultrafeedback_binarized\n";
  const RunConfig plain = config_of(start + "loss_type: [sigmoid, sft]\n");
  EXPECT_EQ(plain.train.loss, LossKind::kDpo);
  EXPECT_EQ(plain.preference.sft_weight, 1.0);
  const ConvertedRun run =
      converted(start + "loss_type: [sft, robust]\nloss_weights: [0.5, 2.0]\n");
  const RunConfig config = load_run_config({}, run.draft.overrides());
  EXPECT_EQ(config.train.loss, LossKind::kDpoRobust);
  EXPECT_EQ(config.preference.sft_weight, 0.25);
  EXPECT_TRUE(has(why(run.left, "loss_weights"), "divided"));
  EXPECT_TRUE(
      has(refusal_of(start + "loss_type: [sigmoid, sft]\nloss_weights: [1.0]\n"), "loss_weights"));
  EXPECT_TRUE(has(refusal_of(start + "loss_type: [sigmoid, ipo]\n"), "ipo"));
  EXPECT_TRUE(has(refusal_of(start + "loss_type: [sft]\n"), "sft"));
}

}  // namespace
}  // namespace longshore
