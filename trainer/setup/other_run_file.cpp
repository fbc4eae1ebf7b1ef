#include "trainer/setup/other_run_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
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

std::string real(double value) {
  std::string text = formatted("%.15g", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// YAML 1.1 reads 1e-4 as a string, which the other trainers take for a number.
std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool asks_for_nothing(const Json& value) {
  if (value.is_null() || value == false || value == 0 || value == "" || value == "none") {
    return true;
  }
  return value.is_structured() && value.empty();
}

// Returns a plain value as TOML; nullopt for tables and lists of other things than strings.
std::optional<std::string> toml_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_integer()) return value.dump();
  if (const auto number = number_of(value)) return real(*number);
  if (value.is_string()) return quote_toml(value.get_ref<const std::string&>());
  return std::nullopt;
}

class Converter {
 public:
  Converter(const std::string& path, const ConversionGiven& given)
      : path_(path), given_(given), file_(read_file(path)), trainer_(trainer_of(file_, path)) {}

  ConvertedRun run() {
    convert_model();
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
    if (!refused_.empty()) throw ConfigError(refused_);
    const CheckedConfig checked = check_run_config({}, draft_.overrides());
    for (const std::string& problem : checked.problems) refused_.push_back(path_ + ": " + problem);
    if (!refused_.empty()) throw ConfigError(refused_);
    return {.trainer = trainer_.name,
            .draft = std::move(draft_),
            .left = std::move(left_),
            .needless = std::move(needless_)};
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

  // Returns the key's value and remembers that it was read; null if it is missing or null.
  const Json* take(const char* name) {
    read_.insert(name);
    const auto found = file_.find(name);
    return found == file_.end() || found->is_null() ? nullptr : &*found;
  }
  bool flag(const char* name) {
    const Json* value = take(name);
    return value != nullptr && (*value == true || *value == "true");
  }
  bool denied(const char* name) {
    const Json* value = take(name);
    return value != nullptr && *value == false;
  }
  std::optional<double> number(const char* name) {
    const Json* value = take(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<double> found = number_of(*value);
    if (!found) refuse(name, "expected a number, found " + printable(value->dump(), 40));
    return found;
  }
  std::string text(const char* name) {
    read_.insert(name);
    return member_text(file_, name);
  }
  std::vector<std::string> list(const char* name) {
    const Json* value = take(name);
    return value == nullptr ? std::vector<std::string>{} : texts_of(*value);
  }

  void set(const char* section, const char* name, const std::string& value) {
    draft_.set(section, name, value, "");
  }
  void note(const std::string& key, const std::string& why) { add(left_, key, why); }
  void refuse(const std::string& key, const std::string& why) {
    refused_.push_back(path_ + ": " + key + ": " + why);
  }
  static void add(std::vector<NotConverted>& list, const std::string& key, const std::string& why) {
    const auto same = std::ranges::find(list, why, &NotConverted::why);
    if (same == list.end()) {
      list.push_back({{key}, why});
    } else {
      same->keys.push_back(key);
    }
  }

  void take_over(const OtherFindings& found) {
    read_.insert(found.read.begin(), found.read.end());
    for (const auto& [key, why] : found.left) note(key, why);
    for (const auto& [key, why] : found.refused) refuse(key, why);
  }

  void convert_model() {
    std::string model = text("base_model");
    if (model.empty()) model = text("model_name_or_path");
    if (!given_.model.empty()) model = given_.model;
    if (model.empty()) refuse("model_name_or_path", "it is missing; name the model with --model");
    std::string directory = text("output_dir");
    if (directory.empty()) directory = "runs/" + std::filesystem::path(path_).stem().string();
    if (!given_.run_directory.empty()) directory = given_.run_directory;
    set("run", "dir", quote_toml(directory));
    if (!model.empty()) set("model", "path", quote_toml(model));
  }

  void convert_loss() {
    const OtherPreference found = read_other_preference(file_, trainer_.name);
    take_over(found);
    loss_ = found.loss;
    if (loss_.empty()) return;
    set("train", "loss", quote_toml(loss_));
    for (const auto& [ours, theirs] : found.numbers) {
      if (const auto value = number(theirs.c_str())) set("preference", ours.c_str(), real(*value));
    }
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
    const bool neat = flag("neat_packing");
    const bool packing = flag("packing") || flag("sample_packing") || neat;
    set("data", "packing", packing ? "true" : "false");
    const std::optional<double> fraction = number("val_set_size"), size = number("val_size");
    const double held_out = fraction.value_or(size.value_or(0.0));
    if (held_out >= 1.0) {
      note(fraction ? "val_set_size" : "val_size",
           "it is a number of rows; set eval.split to the fraction of the documents");
    } else if (held_out > 0.0 && sets.eval.empty()) {
      set("eval", "split", real(held_out));
      evaluates_ = true;
    }
    evaluates_ = evaluates_ || !sets.eval.empty();
  }

  // LLaMA-Factory writes prompts by its chat template, too.
  void convert_template(bool prompts_are_chat) {
    std::string chat = text("chat_template");
    if (chat == "jinja") chat = text("chat_template_jinja");
    if (chat.empty()) chat = text("chat_template_path");
    if (chat.ends_with(".jinja")) {
      set("data", "chat_template", quote_toml(chat));
    } else if (!chat.empty() && !chat.starts_with("tokenizer_default")) {
      note("chat_template",
           "the model's own template is used; for another name a Jinja file in "
           "data.chat_template");
    }
    const std::string named = text("template");
    if (!named.empty()) {
      if (prompts_are_chat) set("data", "prompt_template", "\"chat\"");
      note("template",
           "the model's own chat template is used, which may differ from "
           "LLaMA-Factory's; for another name a Jinja file in data.chat_template");
    }
  }

  void convert_mask() {
    const bool all =
        flag("train_on_inputs") || flag("train_on_prompt") || denied("completion_only_loss");
    const bool last = flag("mask_history"), assistant = flag("assistant_only_loss");
    if (!loss_.empty()) return;  // the answers alone are scored
    if (last) {
      set("data", "mask", "\"last\"");
    } else if (assistant) {
      set("data", "mask", "\"assistant\"");
    } else if (all) {
      set("data", "mask", "\"all\"");
    } else if (&trainer_ == &kTrl) {
      note("assistant_only_loss",
           "without it TRL trains every token of rows with messages; here the answers are trained "
           "(data.mask = \"all\" trains every token)");
    }
  }

  void convert_length() {
    steps_ = number("max_steps").value_or(0.0);
    const std::optional<double> named = number("num_epochs"), other = number("num_train_epochs");
    if (steps_ > 0.0) {
      set("train", "steps", formatted("%.0f", steps_));
    } else {
      set("train", "epochs", real(named.value_or(other.value_or(trainer_.epochs))));
    }
    double batch = static_cast<double>(trainer_.micro_batch);
    for (const char* name : {"micro_batch_size", "per_device_train_batch_size"}) {
      batch = number(name).value_or(batch);
    }
    const double accumulated = number("gradient_accumulation_steps").value_or(1.0);
    set("train", "micro_batch", formatted("%.0f", batch));
    set("train", "sequences_per_step", formatted("%.0f", batch * accumulated));
    note("gradient_accumulation_steps",
         "train.sequences_per_step = " + formatted("%.0f", batch * accumulated) +
             " is the batch of one GPU; multiply it by the number of GPUs that the file was for");
  }

  void convert_optimizer() {
    const bool small_rate = &trainer_ == &kTrl && !loss_.empty();
    lr_ = number("learning_rate").value_or(small_rate ? 1e-6 : trainer_.lr);
    set("optimizer", "lr", real(lr_));
    set("optimizer", "betas",
        "[" + real(number("adam_beta1").value_or(0.9)) + ", " +
            real(number("adam_beta2").value_or(0.999)) + "]");
    std::string name = text("optim");
    if (name.empty()) name = text("optimizer");
    const bool adamw = name.empty() || name.find("adamw") != std::string::npos;
    if (!adamw) refuse("optim = " + printable(name, 40), "Longshore has no optimizer but AdamW");
    // The others keep the moments in fp32, or in 8 bits.
    const bool small = name.find("8bit") != std::string::npos;
    set("offload", "state_format", small ? "\"split-int8\"" : "\"split\"");
    if (flag("activation_offloading")) set("offload", "activations", "\"host\"");
    if (flag("disable_gradient_checkpointing") || denied("gradient_checkpointing")) {
      add(needless_, "gradient_checkpointing",
          "activations are recomputed (fsdp.recompute = \"unit\"); \"none\" takes more memory and "
          "gives the same results");
    }
    take("gradient_checkpointing");
  }

  void convert_schedule() {
    std::string name = text("lr_scheduler");
    if (name.empty()) name = text("lr_scheduler_type");
    if (name.empty()) name = trainer_.schedule;
    const Json* given = take("lr_scheduler_kwargs");
    const Json options = given != nullptr && given->is_object() ? *given : Json::object();
    const auto option = [&options](const char* key) {
      return options.contains(key) ? number_of(options[key]).value_or(0.0) : 0.0;
    };
    double least = option("min_lr_rate");
    if (least == 0.0) least = option("min_lr") / lr_;
    std::string ours = name;
    if (name == "constant_with_warmup") ours = "constant";
    if (name == "cosine_with_min_lr") ours = "cosine";
    if (name == "warmup_stable_decay") {
      ours = "wsd";
      set("schedule", "decay_steps", formatted("%.0f", option("num_decay_steps")));
      least = option("min_lr_ratio");
    }
    if (ours != "constant" && ours != "cosine" && ours != "linear" && ours != "wsd") {
      refuse("lr_scheduler = " + printable(name, 40),
             "the run file has constant, linear, cosine and wsd (schedule.name)");
      ours = "constant";
    }
    set("schedule", "name", quote_toml(ours));
    set("schedule", "min_lr_ratio", real(least));
    convert_warmup(name);
  }

  void convert_warmup(const std::string& schedule) {
    double steps = number("warmup_steps").value_or(0.0);
    double ratio = number("warmup_ratio").value_or(0.0);
    const bool given = file_.contains("warmup_steps") || file_.contains("warmup_ratio");
    if (steps > 0.0 && steps < 1.0) ratio = std::exchange(steps, 0.0);
    if (schedule == "constant") return;  // it has no warm-up
    if (steps > 0.0) {
      set("schedule", "warmup_steps", formatted("%.0f", steps));
    } else if (ratio > 0.0) {
      set("schedule", "warmup_ratio", real(ratio));
    } else if (!given && &trainer_ == &kAxolotl) {
      note("warmup_steps",
           "without it Axolotl warms up for 3% of the steps, at most 100; set "
           "schedule.warmup_steps");
    }
  }

  bool wants_adapter() {
    const std::string adapter = text("adapter");
    const Json* type = take("finetuning_type");
    const bool peft = flag("use_peft");
    if (&trainer_ == &kAxolotl) {
      if (adapter == "lora" || adapter == "dora" || adapter == "qlora") return true;
      if (!adapter.empty()) {
        refuse("adapter = " + printable(adapter, 40), "Longshore has adapters of LoRA and DoRA");
      }
      return false;
    }
    if (&trainer_ == &kTrl) return peft;
    if (type == nullptr || *type == "lora") return true;
    if (*type != "full") {
      refuse("finetuning_type = " + printable(type->dump(), 40),
             "Longshore trains a model in full, or adapters of LoRA and DoRA");
    }
    return false;
  }

  // Returns whether the base is loaded in 4 bits, which only adapters can be trained over.
  bool wants_packed(bool adapter) {
    const std::optional<double> bits = number("quantization_bit");
    const bool packed =
        flag("load_in_4bit") || bits == 4.0 || (adapter && text("adapter") == "qlora");
    const char* const only =
        "quantised bases are adapter.base = \"nf4\" (4 bits) and \"fp8\", under adapters";
    if (bits && bits != 4.0) refuse("quantization_bit = " + formatted("%g", *bits), only);
    if (packed && !adapter) refuse("load_in_4bit or quantization_bit without adapters", only);
    return packed;
  }

  void convert_adapter() {
    const bool on = wants_adapter();
    const bool packed = wants_packed(on);
    const double r = number("lora_r").value_or(
        number("lora_rank").value_or(static_cast<double>(trainer_.adapter_r)));
    const double alpha =
        number("lora_alpha")
            .value_or(trainer_.adapter_alpha > 0.0 ? trainer_.adapter_alpha : 2.0 * r);
    const double dropout = number("lora_dropout").value_or(trainer_.adapter_dropout);
    const bool dora = flag("peft_use_dora") || flag("use_dora") || text("adapter") == "dora";
    const bool rslora = flag("peft_use_rslora") || flag("use_rslora");
    const std::vector<std::string> targets = adapter_targets(on);
    std::vector<std::string> trained = list("lora_modules_to_save");
    for (const std::string& name : list("additional_target")) trained.push_back(name);
    std::string start = text("lora_model_dir");
    if (start.empty()) start = text("adapter_name_or_path");
    if (!on) return;  // without an adapter the other trainers do not read these
    set("adapter", "kind", dora ? "\"dora\"" : "\"lora\"");
    if (packed) set("adapter", "base", "\"nf4\"");
    if (!start.empty()) {  // its own adapter_config.json says the rest
      set("adapter", "path", quote_toml(start));
      if (below_adapter_ && packed) {
        refuse("a reference below the adapters of a base in 4 bits",
               "preference.reference = \"adapter-off\" compares with the published base");
      } else if (below_adapter_) {
        set("preference", "reference", "\"adapter-off\"");
      }
      return;
    }
    set("adapter", "r", formatted("%.0f", r));
    set("adapter", "alpha", real(alpha));
    set("adapter", "dropout", real(dropout));
    if (rslora) set("adapter", "rslora", "true");
    set("adapter", "targets", toml_list(targets));
    if (!trained.empty()) set("adapter", "train", toml_list(trained));
  }

  std::vector<std::string> adapter_targets(bool on) {
    std::vector<std::string> targets = list("lora_target_modules");
    for (const std::string& name : list("lora_target")) targets.push_back(name);
    const bool linear = flag("lora_target_linear");
    if (targets == std::vector<std::string>{"all"} || linear) return {"all-linear"};
    if (!targets.empty()) return targets;
    if (&trainer_ != &kTrl) return {"all-linear"};
    if (on) {
      note("lora_target_modules",
           "without it PEFT adapts q_proj and v_proj of most models; so does "
           "the run file (adapter.targets)");
    }
    return {"q_proj", "v_proj"};
  }

  void convert_precision() {
    const bool half = flag("fp16"), full = denied("bf16");
    const bool pure = flag("pure_bf16");
    take("bf16");
    if (half) note("fp16", "Longshore computes in bf16 or fp32; the run file says bf16");
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
           std::string(find_other_key("saves_per_epoch")->why));
    } else if (steps && *steps >= 1.0) {
      set(section, "every_steps", formatted("%.0f", *steps));
      return true;
    } else if (steps && *steps > 0.0) {
      note(steps_key, "it is a share of the run's steps; set " + std::string(section) +
                          ".every_steps, which counts steps");
    }
    return false;
  }

  void convert_evaluations() {
    take("evaluation_strategy");
    const char* strategy =
        file_.contains("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
    const std::optional<double> patience = number("early_stopping_patience");
    const bool best = flag("load_best_model_at_end");
    if (!evaluates_) {
      for (const char* name : {strategy, "eval_steps"}) {
        if (take(name) != nullptr) add(needless_, name, "the file names no data to evaluate on");
      }
      return;
    }
    if (convert_steps(strategy, "eval_steps", "eval")) {
      if (patience) set("eval", "patience", formatted("%.0f", *patience));
      if (best) set("eval", "keep_best", "true");
    } else if (patience || best) {
      note(patience ? "early_stopping_patience" : "load_best_model_at_end",
           "it needs eval.every_steps; set both");
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
            std::string(find_other_key("wandb_project")->why));
      }
    }
    if (board) set("log", "tensorboard", "true");
  }

  // The keys that need no code of their own, and those that nobody knows.
  void convert_rest() {
    for (const auto& [name, value] : file_.items()) {
      if (read_.contains(name)) continue;
      const OtherKey* known = find_other_key(name);
      if (known == nullptr) {
        if (!value.is_null()) note(printable(name), "`init --from` does not know this key");
        continue;
      }
      const std::string why(known->why);
      if (asks_for_nothing(value) && known->use != OtherKeyUse::kSame) continue;
      if (known->use == OtherKeyUse::kNeedless) add(needless_, name, why);
      if (known->use == OtherKeyUse::kMissing) note(name, why);
      if (known->use == OtherKeyUse::kRefused) refuse(name, why);
      if (known->use == OtherKeyUse::kComputed) {
        note(name, "it is not a key of " + std::string(trainer_.name) + "; here it is " +
                       std::string(known->key));
      }
      if (known->use == OtherKeyUse::kSame && !value.is_null()) take_over(name, *known, value);
    }
  }

  void take_over(const std::string& name, const OtherKey& known, const Json& value) {
    const std::optional<std::string> toml = toml_of(value);
    const size_t dot = known.key.find('.');
    if (toml) {
      draft_.set(std::string(known.key.substr(0, dot)), std::string(known.key.substr(dot + 1)),
                 *toml, "");
    } else {
      note(name, "expected a plain value, for " + std::string(known.key));
    }
  }

  const std::string& path_;
  const ConversionGiven& given_;
  Json file_;
  const OtherTrainer& trainer_;
  RunFileDraft draft_;
  std::set<std::string> read_;
  std::vector<NotConverted> left_, needless_;
  std::vector<std::string> refused_;
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
