// Converts the adapters that a configuration of Axolotl, LLaMA-Factory or TRL asks for, the format
// of their base model, and, without adapters, the choice of trained parameters.
#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "base/texts.h"
#include "config/toml_document.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

constexpr const char* kNf4 = "adapter.base = \"nf4\" does the same";
constexpr const char* kTwice =
    "adapter.base = \"nf4\" quantises the scales too (double quantisation)";
constexpr const char* kNoAdapter = "it has no effect without adapters";
constexpr const char* kUnpacked = "it has no effect without a base in 4 bits";
constexpr const char* kInFull = "Longshore trains a model in full, or adapters of LoRA and DoRA";

// Returns the end of the class of letters and digits that begins `pattern`, "[0-9]", which a glob
// writes in the same way; 0 if it is none.
size_t end_of_class(std::string_view pattern) {
  const size_t end = pattern.find(']');
  if (!pattern.starts_with('[') || end == std::string_view::npos || end < 2) return 0;
  const bool is_plain = std::ranges::all_of(pattern.substr(1, end - 1), [](unsigned char one) {
    return std::isalnum(one) != 0 || one == '-';
  });
  return is_plain ? end + 1 : 0;
}

// Returns whether a second digit of a layer's number follows: no model has 200 layers, so "2[0-9]+"
// is "2[0-9]".
bool is_in_tens(std::string_view before) {
  return before.size() > 1 && before.back() >= '2' && before.back() <= '9' &&
         before[before.size() - 2] == '.';
}

// Returns the glob that matches the names that a pattern of Axolotl's does: a regular expression
// for the beginning of a name, in which "." is itself, but ".+" is any text. Returns nullopt for
// rows of a parameter ("weight$[:32000]") and for patterns that no glob can express.
std::optional<std::string> glob_of_pattern(std::string_view pattern) {
  if (pattern.starts_with('^')) pattern.remove_prefix(1);
  const bool whole = pattern.ends_with('$');
  if (whole) pattern.remove_suffix(1);
  const size_t last = std::min(pattern.rfind('['), pattern.size());
  const bool has_rows = !whole && last < pattern.size() &&
                        pattern.find_first_not_of("0123456789:", last + 1) == pattern.size() - 1;
  if (pattern.empty() || has_rows) return std::nullopt;
  // ".*" is any number of dots there, so at the end of a beginning it changes nothing.
  if (!whole && pattern.ends_with(".*")) pattern.remove_suffix(2);
  std::string glob;
  for (std::string_view rest = pattern; !rest.empty();) {
    const auto c = static_cast<unsigned char>(rest.front());
    if (rest.starts_with(".+")) {
      glob += "?*";
      rest.remove_prefix(2);
    } else if (const size_t end = end_of_class(rest); end > 0) {
      const std::string_view one = rest.substr(0, end);
      rest.remove_prefix(end);
      if (rest.starts_with('+')) {
        const bool is_last = !whole && rest.size() == 1;
        if (!is_last && !(one == "[0-9]" && is_in_tens(glob))) return std::nullopt;
        rest.remove_prefix(1);
      }
      glob += one;
    } else if (std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-') {
      glob += rest.front();
      rest.remove_prefix(1);
    } else {
      return std::nullopt;
    }
  }
  return whole ? glob : glob + "*";
}

class AdapterReader {
 public:
  AdapterReader(const Json& file, const OtherAdapterDefaults& defaults)
      : file_(file), defaults_(defaults) {}

  OtherAdapter read() {
    on_ = wants_adapter();
    found_.packed = wants_packed();
    read_quantisation();
    read_settings();
    read_groups();
    read_frozen();
    return std::move(found_);
  }

 private:
  bool wants_adapter() {
    const std::string adapter = in_.text("adapter");
    const Json* type = in_.take("finetuning_type");
    const bool peft = in_.flag("use_peft");
    if (defaults_.trainer == "Axolotl") {
      if (adapter == "lora" || adapter == "dora" || adapter == "qlora") return true;
      if (!adapter.empty()) {
        in_.refuse("adapter = " + printable(adapter, 40), "Longshore has adapters of LoRA and DoRA",
                   "adapter.kind");
      }
      return false;
    }
    if (defaults_.trainer == "TRL") return peft;
    if (type == nullptr || *type == "lora") return true;
    if (*type == "freeze") {
      in_.refuse("finetuning_type = freeze",
                 "train.freeze names what is frozen, and after ! what is trained; give it with "
                 "--train.freeze='[\"*\", \"!model.layers.3?.*\", ...]'",
                 "train.freeze");
    } else if (*type != "full") {
      in_.refuse("finetuning_type = " + printable(type->dump(), 40), kInFull, "adapter.kind");
    }
    return false;
  }

  // Returns whether the base is loaded in 4 bits, which only adapters can be trained over.
  bool wants_packed() {
    const char* const only =
        "quantised bases are adapter.base = \"nf4\" (4 bits) and \"fp8\", under adapters";
    const std::optional<double> bits = in_.number("quantization_bit");
    const std::string method = in_.text("quantization_method");
    const bool packed =
        in_.flag("load_in_4bit") || bits == 4.0 || (on_ && in_.text("adapter") == "qlora");
    if (bits && bits != 4.0) {
      in_.refuse("quantization_bit = " + formatted("%g", *bits), only, "adapter.base");
    }
    if (!method.empty() && method != "bnb" && method != "bitsandbytes") {
      in_.refuse("quantization_method = " + printable(method, 40), only, "adapter.base");
    } else if (!method.empty()) {
      in_.needless("quantization_method", packed ? kNf4 : kUnpacked);
    }
    if (packed && !on_) {
      in_.refuse("load_in_4bit or quantization_bit without adapters", only, "adapter.kind");
    }
    return packed && on_;
  }

  void quantised(const std::string& key, bool same, const char* otherwise) {
    if (!found_.packed) return in_.needless(key, kUnpacked);
    same ? in_.needless(key, kNf4) : in_.left(key, otherwise);
  }

  // The settings of bitsandbytes, of which nf4 with double quantisation is what Longshore has.
  void read_quantisation() {
    const char* const levels = "the levels of adapter.base = \"nf4\" are those of nf4";
    for (const char* name : {"bnb_4bit_quant_type", "quantization_type"}) {
      if (in_.take(name) != nullptr) quantised(name, in_.text(name) == "nf4", levels);
    }
    for (const char* name : {"double_quantization", "use_bnb_nested_quant"}) {
      if (in_.take(name) != nullptr) quantised(name, in_.flag(name), kTwice);
    }
    if (found_.packed && defaults_.trainer == "TRL" && !in_.has("use_bnb_nested_quant")) {
      in_.left("use_bnb_nested_quant", std::string("without it TRL does not, but ") + kTwice);
    }
    const Json* options = in_.take("bnb_config_kwargs");
    if (options == nullptr || !options->is_object()) return;
    for (const auto& [name, value] : options->items()) {
      const std::string key = "bnb_config_kwargs." + printable(name, 40);
      if (name == "bnb_4bit_quant_type") {
        quantised(key, value == "nf4", levels);
      } else if (name == "bnb_4bit_use_double_quant") {
        quantised(key, value == true, kTwice);
      } else {
        in_.needless(key, "Longshore unpacks a matrix where it is used, in precision.compute");
      }
    }
  }

  void read_settings() {
    const double r = in_.number("lora_r").value_or(
        in_.number("lora_rank").value_or(static_cast<double>(defaults_.r)));
    const double alpha =
        in_.number("lora_alpha").value_or(defaults_.alpha > 0.0 ? defaults_.alpha : 2.0 * r);
    const double dropout = in_.number("lora_dropout").value_or(defaults_.dropout);
    const bool dora =
        in_.flag("peft_use_dora") || in_.flag("use_dora") || in_.text("adapter") == "dora";
    const bool rslora = in_.flag("peft_use_rslora") || in_.flag("use_rslora");
    targets_ = adapter_targets();
    const std::string ranks = patterns("lora_rank_pattern", "adapter.rank_pattern");
    const std::string alphas = patterns("lora_alpha_pattern", "adapter.alpha_pattern");
    const std::string layers = adapted_layers();
    std::vector<std::string> trained = in_.list("lora_modules_to_save");
    for (const std::string& name : in_.list("additional_target")) trained.push_back(name);
    std::string start = in_.text("lora_model_dir");
    if (start.empty()) start = in_.text("adapter_name_or_path");
    if (!on_) return name_unused();
    in_.set("adapter.kind", dora ? "\"dora\"" : "\"lora\"");
    if (found_.packed) in_.set("adapter.base", "\"nf4\"");
    if (!start.empty()) return start_from(start);
    in_.set("adapter.r", formatted("%.0f", r));
    in_.set("adapter.alpha", toml_real(alpha));
    in_.set("adapter.dropout", toml_real(defaults_.drops ? dropout : 0.0));
    if (rslora) in_.set("adapter.rslora", "true");
    in_.set("adapter.targets", toml_list(targets_));
    if (!layers.empty()) in_.set("adapter.layers", layers);
    if (!ranks.empty()) in_.set("adapter.rank_pattern", ranks);
    if (!alphas.empty()) in_.set("adapter.alpha_pattern", alphas);
    if (!trained.empty()) in_.set("adapter.train", toml_list(trained));
  }

  // Returns PEFT's layers_to_transform, a number or a list of them, as TOML; empty without any.
  std::string adapted_layers() {
    std::vector<std::string> layers;
    for (const char* name : {"lora_layers_to_transform", "peft_layers_to_transform"}) {
      const Json* const given = in_.take(name);
      if (given == nullptr) continue;
      for (const Json& one : given->is_array() ? *given : Json::array({*given})) {
        if (one.is_number_integer() && one >= 0) {
          layers.push_back(std::to_string(one.get<int64_t>()));
        } else {
          in_.left(name, "it is no list of layers' numbers", "adapter.layers");
        }
      }
    }
    if (in_.take("peft_layers_pattern") != nullptr && on_) {
      in_.needless("peft_layers_pattern", "adapter.layers counts the model's layers");
    }
    return layers.empty() ? "" : "[" + joined(layers, ", ") + "]";
  }

  // Returns PEFT's rank_pattern or alpha_pattern as TOML; empty without one.
  std::string patterns(const char* name, const std::string& ours) {
    const Json* const table = in_.take(name);
    if (table == nullptr || table->empty()) return "";
    std::vector<std::string> entries;
    if (table->is_object()) {
      for (const auto& [pattern, value] : table->items()) {
        const std::optional<double> number = number_of(value);
        if (number) entries.push_back(quote_toml(pattern) + " = " + formatted("%.10g", *number));
      }
    }
    if (entries.size() == table->size() && table->is_object()) {
      return "{ " + joined(entries, ", ") + " }";
    }
    in_.left(name, "it is no table of patterns and numbers", ours);
    return "";
  }

  // Names the keys of adapters in a file that asks for none.
  void name_unused() {
    for (const char* name :
         {"lora_r", "lora_rank", "lora_alpha", "lora_dropout", "peft_use_dora", "use_dora",
          "peft_use_rslora", "use_rslora", "lora_modules_to_save", "additional_target",
          "lora_target_modules", "lora_target", "lora_target_linear", "lora_rank_pattern",
          "lora_alpha_pattern", "lora_layers_to_transform", "peft_layers_to_transform",
          "peft_layers_pattern"}) {
      if (in_.has(name)) in_.needless(name, kNoAdapter);
    }
    for (const char* name : {"lora_model_dir", "adapter_name_or_path"}) {
      if (!in_.text(name).empty()) {
        in_.left(name, "merge the adapter, and name the merged model with --model", "model.path");
      }
    }
  }

  // The adapter's own adapter_config.json says the rest.
  void start_from(const std::string& start) {
    in_.set("adapter.path", quote_toml(start));
    for (const char* name :
         {"lora_r", "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target",
          "lora_target_linear", "lora_rank_pattern", "lora_alpha_pattern",
          "lora_layers_to_transform", "peft_layers_to_transform"}) {
      if (in_.has(name)) {
        in_.needless(name, "adapter_config.json of adapter.path has the settings of the adapter");
      }
    }
    if (defaults_.below_adapter && found_.packed) {
      in_.refuse("a reference below the adapters of a base in 4 bits",
                 "preference.reference = \"adapter-off\" compares with the published base",
                 "preference.reference");
    } else if (defaults_.below_adapter) {
      in_.set("preference.reference", "\"adapter-off\"");
    }
  }

  std::vector<std::string> adapter_targets() {
    const std::string pattern = in_.text("lora_target_modules");
    // Axolotl hands a text on to PEFT, for which it is a regular expression.
    if (pattern.find_first_of("\\*+?[(|") != pattern.npos) return {"re:" + pattern};
    std::vector<std::string> targets = in_.list("lora_target_modules");
    for (const std::string& name : in_.list("lora_target")) targets.push_back(name);
    const bool linear = in_.flag("lora_target_linear");
    if (targets == std::vector<std::string>{"all"} || linear) return {"all-linear"};
    if (!targets.empty()) return targets;
    if (defaults_.trainer != "TRL") return {"all-linear"};
    if (on_) {
      in_.left("lora_target_modules",
               "without it PEFT adapts q_proj and v_proj of most models; so does the run file "
               "(adapter.targets)",
               "adapter.targets");
    }
    return {"q_proj", "v_proj"};
  }

  static std::string group(const std::string& glob, double lr) {
    return "{ parameters = [" + quote_toml(glob) + "], lr = " + toml_real(lr) + " }";
  }

  // LoRA+ and learning rates of modules are parameter groups.
  void read_groups() {
    std::vector<std::string> groups;
    const std::optional<double> ratio = in_.number("loraplus_lr_ratio");
    const std::optional<double> embedding = in_.number("loraplus_lr_embedding");
    if (ratio && !on_) in_.needless("loraplus_lr_ratio", kNoAdapter);
    const bool plus = on_ && ratio && *ratio > 0.0;
    const bool looks_up = std::ranges::find(targets_, "embed_tokens") != targets_.end();
    if (plus) {
      groups.push_back(group("*.lora_B.weight", *ratio * defaults_.lr));
      if (looks_up) groups.push_back(group("*.lora_embedding_B", embedding.value_or(1e-6)));
    }
    if (embedding && !(plus && looks_up)) {
      in_.needless("loraplus_lr_embedding", "the embedding has no adapter of LoRA+");
    }
    const Json* sets = in_.take("lr_groups");
    if (sets != nullptr && sets->is_array()) {
      for (const Json& set : *sets) {
        if (!set.is_object() || !set.contains("modules") || !set.contains("lr")) continue;
        const double lr = number_of(set["lr"]).value_or(defaults_.lr);
        for (const std::string& name : texts_of(set["modules"])) {
          groups.push_back(group("*" + name + "*", lr));
        }
      }
    }
    if (!groups.empty()) in_.set("optimizer.groups", "[" + joined(groups, ", ") + "]");
  }

  // Axolotl's unfrozen_parameters name what is trained by regular expressions.
  void read_frozen() {
    const std::vector<std::string> patterns = in_.list("unfrozen_parameters");
    if (patterns.empty()) return;
    if (on_) {
      return in_.left("unfrozen_parameters",
                      "adapters are trained over a frozen model; adapter.train names what is "
                      "trained as well",
                      "adapter.train");
    }
    std::vector<std::string> parts = {"model.embed_tokens", "model.norm", "lm_head"};
    std::vector<std::string> globs = {"*"};
    bool are_parts = true;
    for (const std::string& pattern : patterns) {
      const std::optional<std::string> glob = glob_of_pattern(pattern);
      if (!glob) {
        return in_.refuse("unfrozen_parameters",
                          "\"" + printable(pattern, 60) +
                              "\" says what no glob can; give what is trained with "
                              "--train.freeze='[\"*\", \"!model.layers.3?.*\", ...]'",
                          "train.freeze");
      }
      globs.push_back("!" + *glob);
      const size_t left = parts.size();
      std::erase_if(parts, [&](const std::string& part) {
        return *glob == part + ".weight" || *glob == part + ".weight*" || *glob == part + "*";
      });
      are_parts = are_parts && parts.size() < left;
    }
    if (are_parts) {
      globs.clear();
      for (const std::string& part : parts) globs.push_back(part + ".*");
      globs.emplace_back("model.layers.*");
    }
    in_.set("train.freeze", toml_list(globs));
  }

  const Json& file_;
  const OtherAdapterDefaults& defaults_;
  OtherAdapter found_;
  OtherReader in_{file_, found_};
  bool on_ = false;
  std::vector<std::string> targets_;
};

}  // namespace

OtherAdapter read_other_adapter(const Json& file, const OtherAdapterDefaults& defaults) {
  return AdapterReader(file, defaults).read();
}

}  // namespace longshore
