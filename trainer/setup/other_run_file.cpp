#include "trainer/setup/other_run_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/texts.h"
#include "config/other_trainers.h"
#include "config/toml_document.h"
#include "hf/yaml.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits{.max_bytes = kMiB, .max_depth = 16, .max_values = 20'000};

// Defaults that a file of the trainer relies on where it leaves a key out.
struct OtherTrainer {
  const char* name;
  double lr, epochs;
  int64_t micro_batch;
  const char* schedule;
  int64_t max_tokens;
  const char* overlength;
  int64_t adapter_r;
  double adapter_alpha;  // 0: twice the rank
  double adapter_dropout;
};
constexpr OtherTrainer kAxolotl{"Axolotl", 5e-5, 1.0, 1, "cosine", 512, "drop", 8, 16.0, 0.0};
constexpr OtherTrainer kLlamaFactory{"LLaMA-Factory", 5e-5, 3.0, 8,  "linear", 2048,
                                     "truncate",      8,    0.0, 0.0};
constexpr OtherTrainer kTrl{"TRL", 2e-5, 3.0, 8, "linear", 1024, "truncate", 16, 32.0, 0.05};

// Returns whether the key's value asks for nothing: the other trainer's default.
bool asks_for_nothing(const OtherKey& key, const Json& value) {
  if (value == "" || (value.is_structured() && value.empty())) return true;
  if (!key.usual.empty()) return value.dump() == key.usual;
  return value == false || value == 0 || value == "none" || value == "false";
}

class Converter {
 public:
  Converter(const std::string& path, const ConversionGiven& given)
      : path_(path),
        given_(given),
        file_(read_file(path)),
        trainer_(trainer_of(file_, path)),
        draft_(given.keys) {}

  ConvertedRun run() {
    convert_model();
    take_over(read_other_tokens(file_, trainer_.name));
    convert_loss();
    convert_data();
    convert_length();
    convert_optimizer();
    convert_schedule();
    convert_adapter();
    convert_precision();
    convert_saves();
    convert_evaluations();
    convert_rest();
    take_over(found_);
    draft_.add_given();
    // A refusal names everything else too, so that one look at the list is enough.
    if (refused_.empty()) {
      const CheckedConfig checked = check_run_config({}, draft_.overrides());
      for (const std::string& problem : checked.problems) {
        refused_.push_back(path_ + ": " + problem);
      }
    }
    if (!refused_.empty()) {
      for (const NotConverted& entry : left_) {
        refused_.push_back(path_ + ": not converted either: " + joined(entry.keys, ", ") + ": " +
                           entry.why);
      }
      throw ConfigError(refused_);
    }
    return {.trainer = trainer_.name,
            .draft = std::move(draft_),
            .left = std::move(left_),
            .needless = std::move(needless_),
            .reminder = reminder_};
  }

 private:
  static Json read_file(const std::string& path) {
    Json file = yaml_to_json(read_input(path, kLimits.max_bytes), kLimits, path);
    if (file.is_object() && !file.empty()) return file;
    throw ConfigError(path + ": expected the keys of Axolotl, LLaMA-Factory or TRL, found none");
  }

  static const OtherTrainer& trainer_of(const Json& file, const std::string& path) {
    if (file.contains("base_model")) return kAxolotl;
    for (const char* key : {"stage", "finetuning_type", "cutoff_len", "template", "dataset_dir"}) {
      if (file.contains(key)) return kLlamaFactory;
    }
    for (const char* key : {"model_name_or_path", "dataset_name", "datasets", "output_dir",
                            "per_device_train_batch_size", "learning_rate"}) {
      if (file.contains(key)) return kTrl;
    }
    throw ConfigError(path +
                      ": this is no file of Axolotl (it has no base_model), LLaMA-Factory or TRL "
                      "(it has no model_name_or_path)");
  }

  const Json* take(const char* name) { return in_.take(name); }
  bool flag(const char* name) { return in_.flag(name); }
  bool denied(const char* name) { return in_.denied(name); }
  std::optional<double> number(const char* name) { return in_.number(name); }
  std::string text(const char* name) { return in_.text(name); }
  std::vector<std::string> list(const char* name) { return in_.list(name); }

  void set(const char* section, const char* name, const std::string& value) {
    draft_.set(section, name, value, "");
  }
  void note(const std::string& key, const std::string& why, const std::string& ours = "") {
    in_.left(key, why, ours);
  }
  void refuse(const std::string& key, const std::string& why, const std::string& ours = "") {
    in_.refuse(key, why, ours);
  }
  static void add(std::vector<NotConverted>& list, const std::string& key, const std::string& why) {
    const auto same = std::ranges::find(list, why, &NotConverted::why);
    if (same == list.end()) {
      list.push_back({{key}, why});
    } else if (std::ranges::find(same->keys, key) == same->keys.end()) {
      same->keys.push_back(key);
    }
  }

  bool is_given(const std::string& ours) const {
    return !ours.empty() && !draft_.given(ours).empty();
  }
  void take_over(const OtherFindings& found) {
    read_.insert(found.read.begin(), found.read.end());
    for (const OtherValue& value : found.values) {
      const size_t dot = value.key.find('.');
      draft_.set(value.key.substr(0, dot), value.key.substr(dot + 1), value.value, "");
    }
    for (const auto& [key, why, ours] : found.left) {
      if (!is_given(ours)) add(left_, key, why);
    }
    for (const auto& [key, why, ours] : found.needless) add(needless_, key, why);
    for (const auto& [key, why, ours] : found.refused) {
      const std::string problem = path_ + ": " + key + ": " + why;
      if (is_given(ours) || std::ranges::count(refused_, problem) > 0) continue;
      refused_.push_back(problem);
    }
  }

  void convert_model() {
    std::string model = text("base_model");
    if (model.empty()) model = text("model_name_or_path");
    if (!given_.model.empty()) model = given_.model;
    if (model.empty()) refuse("model_name_or_path", "it is missing; name the model with --model");
    for (const char* name : {"model_revision", "revision_of_model"}) {
      const std::string revision = text(name);
      if (revision.empty() || revision == "main" || model.empty()) continue;
      if (!given_.model.empty()) {
        add(needless_, name, "another model is given");
        continue;
      }
      std::error_code ignored;
      if (std::filesystem::exists(model, ignored) || model.find('@') != std::string::npos) {
        note(name, "model.path is a directory, whose weights are taken as they are");
      } else {
        model += "@" + revision;
      }
    }
    std::string directory = text("output_dir");
    if (directory.empty()) directory = "runs/" + std::filesystem::path(path_).stem().string();
    if (!given_.run_directory.empty()) directory = given_.run_directory;
    set("run", "dir", quote_toml(directory));
    if (!model.empty()) set("model", "path", quote_toml(model));
  }

  void convert_loss() {
    const OtherPreference found = read_other_preference(file_, trainer_.name);
    loss_ = found.loss;
    if (!loss_.empty()) set("train", "loss", quote_toml(loss_));
    take_over(found);
    if (loss_.empty()) return;
    if (loss_ == "orpo" || loss_ == "simpo") return;  // without a reference
    if (!found.reference.empty()) set("preference", "reference", quote_toml(found.reference));
    below_adapter_ = found.reference.empty();
  }

  void convert_data() {
    OtherDataSets sets = read_other_data_sets(file_, given_.data, text("dataset_dir"));
    take_over(sets);
    if (!sets.train.empty()) set("data", "train", toml_list(sets.train));
    if (!sets.eval.empty()) set("data", "eval", toml_list(sets.eval));
    if (!sets.keys.empty()) set("data", "keys", sets.keys);
    if (!sets.prompt_template.empty()) {
      set("data", "prompt_template", quote_toml(sets.prompt_template));
    }
    convert_template(sets.prompt_template.empty());
    convert_mask();
    set("data", "max_tokens", std::to_string(trainer_.max_tokens));  // convert_rest replaces it
    std::string overlength = text("excess_length_strategy");
    if (overlength == "raise") overlength = "error";
    if (overlength != "drop" && overlength != "truncate" && overlength != "error") {
      overlength = trainer_.overlength;
    }
    set("data", "overlength", quote_toml(overlength));
    // LLaMA-Factory packs by default in its stage pt.
    const bool neat = flag("neat_packing");
    const bool packing = flag("packing") || flag("sample_packing") || neat ||
                         (text("stage") == "pt" && take("packing") == nullptr);
    set("data", "packing", packing ? "true" : "false");
    convert_order();
    const char* held = "val_set_size";
    for (const char* name : {"val_size", "test_split_size"}) held = in_.has(name) ? name : held;
    const double held_out = number(held).value_or(0.0);
    if (held_out >= 1.0) {
      note(held, "it is a number of rows; set eval.split to the fraction of the documents",
           "eval.split");
    } else if (held_out > 0.0 && sets.eval.empty()) {
      set("eval", "split", toml_real(held_out));
      evaluates_ = true;
    } else if (held_out > 0.0) {
      add(needless_, held, "the data to evaluate on is named (data.eval)");
    }
    evaluates_ = evaluates_ || !sets.eval.empty();
  }

  // The others shuffle by default, too.
  void convert_order() {
    const bool merged = denied("shuffle_merged_datasets"), sorted = flag("curriculum_sampling");
    const bool disabled = flag("disable_shuffling");
    const bool ordered =
        text("train_sampling_strategy") == "sequential" || merged || sorted || disabled;
    if (ordered) set("data", "shuffle", "false");
    for (const char* name : {"shuffle_merged_datasets", "curriculum_sampling", "disable_shuffling",
                             "train_sampling_strategy"}) {
      if (in_.has(name) && !ordered) add(needless_, name, "the rows are shuffled (data.shuffle)");
    }
    if (flag("split_special_tokens")) set("data", "special_tokens", "\"text\"");
  }

  // Variables of the chat template.
  void convert_arguments() {
    std::vector<std::string> arguments;
    const auto add_argument = [&](const std::string& key, const std::string& name,
                                  const Json& value) {
      const std::optional<std::string> toml =
          value.is_string() ? quote_toml(value.get_ref<const std::string&>()) : toml_of(value);
      if (toml && !value.is_number_float()) {
        arguments.push_back(name + " = " + *toml);
      } else if (!value.is_null()) {
        note(key, "expected a text, an integer, true or false for data.template_arguments",
             "data.template_arguments");
      }
    };
    if (const Json* thinks = take("enable_thinking")) {
      add_argument("enable_thinking", "enable_thinking", *thinks);
    }
    const Json* more = take("chat_template_kwargs");
    if (more != nullptr && !more->is_object()) {
      note("chat_template_kwargs", "expected a table", "data.template_arguments");
    }
    if (more != nullptr && more->is_object()) {
      for (const auto& [name, value] : more->items()) {
        add_argument("chat_template_kwargs." + printable(name, 40), name, value);
      }
    }
    if (!arguments.empty()) {
      set("data", "template_arguments", "{ " + joined(arguments, ", ") + " }");
    }
  }

  // LLaMA-Factory writes prompts by its chat template, too.
  void convert_template(bool prompts_are_chat) {
    std::string chat = text("chat_template");
    const std::string jinja = text("chat_template_jinja");
    if (!jinja.empty() && (chat.empty() || chat == "jinja")) {
      read_jinja("chat_template_jinja", jinja, in_);
      chat.clear();
    } else if (!jinja.empty()) {
      add(needless_, "chat_template_jinja", "chat_template names another template");
    }
    if (chat.empty()) chat = text("chat_template_path");
    if (chat.ends_with(".jinja")) {
      set("data", "chat_template", quote_toml(chat));
    } else if (chat.starts_with("tokenizer_default")) {
      add(needless_, "chat_template", "the model's own template is used");
    } else if (!chat.empty()) {
      note("chat_template",
           "the model's own template is used; for another name a Jinja file in "
           "data.chat_template",
           "data.chat_template");
    }
    convert_arguments();
    const std::string named = text("template");
    if (!named.empty()) {
      if (prompts_are_chat) set("data", "prompt_template", "\"chat\"");
      note("template",
           "the model's own chat template is used, which may differ from "
           "LLaMA-Factory's; for another name a Jinja file in data.chat_template",
           "data.chat_template");
    }
  }

  void convert_mask() {
    const bool all =
        flag("train_on_inputs") || flag("train_on_prompt") || denied("completion_only_loss");
    const bool last = flag("mask_history"), assistant = flag("assistant_only_loss");
    if (loss_.empty() && flag("completion_only_loss")) {
      add(needless_, "completion_only_loss", "completions alone are trained (data.mask)");
    }
    if (!loss_.empty()) {  // the answers alone are scored
      for (const char* name : {"train_on_inputs", "train_on_prompt", "completion_only_loss",
                               "mask_history", "assistant_only_loss"}) {
        if (in_.has(name)) add(needless_, name, "the answers alone are scored with this loss");
      }
    } else if (last) {
      set("data", "mask", "\"last\"");
    } else if (assistant) {
      set("data", "mask", "\"assistant\"");
    } else if (all) {
      set("data", "mask", "\"all\"");
    } else if (&trainer_ == &kTrl) {
      note("assistant_only_loss",
           "without it TRL trains every token of rows with messages; here the answers are trained "
           "(data.mask = \"all\" trains every token)",
           "data.mask");
    }
  }

  void convert_length() {
    steps_ = number("max_steps").value_or(0.0);
    const std::optional<double> named = number("num_epochs"), other = number("num_train_epochs");
    if (steps_ > 0.0) {
      set("train", "steps", formatted("%.0f", steps_));
    } else {
      set("train", "epochs", toml_real(named.value_or(other.value_or(trainer_.epochs))));
    }
    double batch = static_cast<double>(trainer_.micro_batch);
    for (const char* name : {"micro_batch_size", "per_device_train_batch_size"}) {
      batch = number(name).value_or(batch);
    }
    double all = batch * number("gradient_accumulation_steps").value_or(1.0);
    if (&trainer_ == &kAxolotl && !in_.has("gradient_accumulation_steps")) {
      all = number("batch_size").value_or(all);
    }
    set("train", "micro_batch", formatted("%.0f", batch));
    set("train", "sequences_per_step", formatted("%.0f", all));
    if (!is_given("train.sequences_per_step")) {
      reminder_ = "train.sequences_per_step = " + formatted("%.0f", all) +
                  " is the batch of one GPU; multiply it by the number of GPUs that the file was "
                  "for";
    }
  }

  void convert_optimizer() {
    const bool small_rate = &trainer_ == &kTrl && !loss_.empty();
    lr_ = number("learning_rate").value_or(small_rate ? 1e-6 : trainer_.lr);
    set("optimizer", "lr", toml_real(lr_));
    set("optimizer", "betas",
        "[" + toml_real(number("adam_beta1").value_or(0.9)) + ", " +
            toml_real(number("adam_beta2").value_or(0.999)) + "]");
    std::string name = text("optim");
    if (name.empty()) name = text("optimizer");
    const bool adamw = name.empty() || name.find("adamw") != std::string::npos;
    if (!adamw) {
      refuse("optim = " + printable(name, 40), "Longshore has no optimizer but AdamW",
             "optimizer.name");
    }
    // The others keep the moments in fp32, or in 8 bits.
    const bool small = name.find("8bit") != std::string::npos;
    set("offload", "state_format", small ? "\"split-int8\"" : "\"split\"");
    convert_checkpointing();
  }

  void convert_checkpointing() {
    bool offloads = false, disk = false;
    for (const char* name : {"gradient_checkpointing", "activation_offloading"}) {
      const std::string how = text(name);
      const bool switched = std::string_view(name) == "activation_offloading" && flag(name);
      disk = disk || how == "offload_disk" || how == "disk";
      offloads = offloads || switched || disk || how == "offload" || how == "legacy" ||
                 how == "hidden_states" || how == "unsloth";
    }
    if (offloads) set("offload", "activations", "\"host\"");
    if (disk) {
      add(needless_, "activations on disk",
          "they are on the host; offload.activations = \"nvme\" with offload.nvme puts them on "
          "drives");
    }
    const bool disabled = flag("disable_gradient_checkpointing");
    if (disabled || denied("gradient_checkpointing")) {
      add(needless_, disabled ? "disable_gradient_checkpointing" : "gradient_checkpointing",
          "activations are recomputed (fsdp.recompute = \"unit\"); \"none\" takes more memory and "
          "gives the same results");
    } else if (!offloads) {
      for (const char* name : {"gradient_checkpointing", "disable_gradient_checkpointing"}) {
        if (in_.has(name)) add(needless_, name, "activations are recomputed (fsdp.recompute)");
      }
    }
  }

  void convert_schedule() {
    take_over(read_other_schedule(
        file_, {.trainer = trainer_.name, .name = trainer_.schedule, .lr = lr_, .steps = steps_}));
  }

  void convert_adapter() {
    // With these losses the other trainers set dropout to 0, also that of adapters.
    const bool drops = loss_.empty() || denied("disable_dropout");
    if (!drops && number("lora_dropout").value_or(0.0) > 0.0) {
      note("lora_dropout", "with this loss it is 0, unless disable_dropout is false",
           "adapter.dropout");
    }
    if (take("disable_dropout") != nullptr) {
      add(needless_, "disable_dropout", "adapter.dropout is the only dropout");
    }
    OtherAdapter found = read_other_adapter(file_, {.trainer = trainer_.name,
                                                    .r = trainer_.adapter_r,
                                                    .alpha = trainer_.adapter_alpha,
                                                    .dropout = trainer_.adapter_dropout,
                                                    .lr = lr_,
                                                    .drops = drops,
                                                    .below_adapter = below_adapter_});
    take_over(found);
    take_over(read_other_deepspeed(file_, path_, found.packed));
  }

  void convert_precision() {
    const bool half = flag("fp16"), full = denied("bf16");
    const bool pure = flag("pure_bf16");
    take("bf16");
    if (pure) note("pure_bf16", "fp32 master weights are kept");
    if (half) {
      note("fp16", "Longshore computes in bf16 or fp32; the run file says bf16",
           "precision.compute");
    }
    set("precision", "compute", full && !half && !pure ? "\"fp32\"" : "\"bf16\"");
  }

  // Returns whether the section got a number of steps; else its default stays, or it is 0.
  bool convert_steps(const char* strategy_key, const char* steps_key, const char* section) {
    const std::string strategy = text(strategy_key);
    const std::optional<double> steps = number(steps_key);
    if (strategy == "no" || denied(strategy_key)) {
      set(section, "every_steps", "0");
    } else if (strategy == "epoch" || strategy == "best") {
      note(std::string(strategy_key) + " = " + strategy,
           std::string(find_other_key("saves_per_epoch")->why),
           std::string(section) + ".every_steps");
    } else if (steps && *steps >= 1.0) {
      set(section, "every_steps", formatted("%.0f", *steps));
      return true;
    } else if (steps && *steps > 0.0) {
      note(steps_key,
           "it is a share of the run's steps; set " + std::string(section) +
               ".every_steps, which counts steps",
           std::string(section) + ".every_steps");
    }
    return false;
  }

  void convert_evaluations() {
    take("evaluation_strategy");
    const char* strategy =
        file_.contains("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
    const char* const stopping =
        in_.has("early_stopping_steps") ? "early_stopping_steps" : "early_stopping_patience";
    const std::optional<double> patience = number(stopping);
    const bool best = flag("load_best_model_at_end");
    if (!evaluates_) {
      const char* const none = "the file names no data to evaluate on";
      for (const char* name : {strategy, "eval_steps", stopping}) {
        if (take(name) != nullptr) add(needless_, name, none);
      }
      if (best) add(needless_, "load_best_model_at_end", none);
      return;
    }
    if (convert_steps(strategy, "eval_steps", "eval")) {
      if (patience) set("eval", "patience", formatted("%.0f", *patience));
      if (best) set("eval", "keep_best", "true");
    } else if (patience || best) {
      note(patience ? stopping : "load_best_model_at_end", "it needs eval.every_steps; set both");
    }
  }

  void convert_saves() {
    convert_steps("save_strategy", "save_steps", "checkpoint");
    const Json* resume = take("resume_from_checkpoint");
    if (resume != nullptr && resume->is_string()) {
      note("resume_from_checkpoint",
           "checkpoints of other trainers are not read; the run begins "
           "with the model");
    }
    bool board = flag("use_tensorboard");
    for (const std::string& name : list("report_to")) {
      board = board || name == "tensorboard" || name == "all";
      if (name != "tensorboard" && name != "none") {
        add(needless_, "report_to = " + printable(name, 40),
            std::string(find_other_key("use_wandb")->why));
      }
    }
    if (board) set("log", "tensorboard", "true");
  }

  // The keys that need no code for their conversion, and unknown keys.
  void convert_rest() {
    read_.insert(found_.read.begin(), found_.read.end());
    for (const auto& [name, value] : file_.items()) {
      if (read_.contains(name)) continue;
      const OtherKey* known = find_other_key(name);
      if (known == nullptr) {
        if (!value.is_null()) note(printable(name), "`init --from` does not know this key");
        continue;
      }
      const std::string why(known->why);
      if (value.is_null()) continue;
      const bool same = known->use == OtherKeyUse::kSame;
      if (!same && asks_for_nothing(*known, value)) continue;
      if (known->use == OtherKeyUse::kNeedless) add(needless_, name, why);
      if (known->use == OtherKeyUse::kMissing) note(name, why);
      if (known->use == OtherKeyUse::kRefused) refuse(name, why);
      if (known->use == OtherKeyUse::kComputed) {
        note(name, "it is not a key of " + std::string(trainer_.name) + "; here it is " +
                       std::string(known->key));
      }
      if (same) take_value(name, *known, value);
    }
  }

  void take_value(const std::string& name, const OtherKey& known, const Json& value) {
    const std::optional<std::string> toml = toml_of(value);
    const size_t dot = known.key.find('.');
    if (toml) {
      draft_.set(std::string(known.key.substr(0, dot)), std::string(known.key.substr(dot + 1)),
                 *toml, "");
    } else {
      note(name, "expected a plain value, for " + std::string(known.key), std::string(known.key));
    }
  }

  const std::string& path_;
  const ConversionGiven& given_;
  Json file_;
  const OtherTrainer& trainer_;
  RunFileDraft draft_;
  OtherFindings found_;
  OtherReader in_{file_, found_};
  std::set<std::string> read_;
  std::vector<NotConverted> left_, needless_;
  std::vector<std::string> refused_;
  std::string reminder_;
  double steps_ = 0.0;  // 0: the epochs set the length
  std::string loss_;    // over preferences; empty: supervised fine-tuning
  double lr_ = 0.0;
  bool evaluates_ = false;
  bool below_adapter_ = false;  // the reference is the model without its adapter
};

}  // namespace

ConvertedRun convert_run_file(const std::string& path, const ConversionGiven& given) {
  return Converter(path, given).run();
}

}  // namespace longshore
