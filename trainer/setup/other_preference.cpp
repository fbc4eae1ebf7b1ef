#include "trainer/setup/other_preference.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/texts.h"

namespace longshore {
namespace {

constexpr const char* kLosses =
    "`init --from` converts supervised fine-tuning, and the losses sigmoid (dpo), robust, ipo, "
    "orpo, simpo and kto over preferences; not rewards";

// Names of TRL and LLaMA-Factory for a loss, and the name in the run file.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames = {
    {{"sigmoid", "dpo"},
     {"robust", "dpo-robust"},
     {"ipo", "ipo"},
     {"orpo", "orpo"},
     {"simpo", "simpo"},
     {"kto", "kto"}}};

class PreferenceReader {
 public:
  PreferenceReader(const Json& file, std::string_view trainer) : file_(file), trainer_(trainer) {}

  OtherPreference read() {
    if (trainer_ == "Axolotl") read_axolotl();
    if (trainer_ == "LLaMA-Factory") read_llama_factory();
    if (trainer_ == "TRL") read_trl();
    read_numbers();
    read_reference();
    return std::move(found_);
  }

 private:
  const Json* take(const char* name) {
    found_.read.emplace_back(name);
    const auto member = file_.find(name);
    return member == file_.end() || member->is_null() ? nullptr : &*member;
  }
  std::string text(const char* name) {
    const Json* value = take(name);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  void refuse(const std::string& key, const std::string& value) {
    found_.refused.emplace_back(key + " = " + printable(value, 40), kLosses);
  }

  // Sets the loss of this name; `value` may be a list of one name.
  void name_loss(const char* key, const Json& value) {
    const std::vector<std::string> names = texts_of(value);
    const auto known = std::ranges::find_if(
        kNames, [&](const auto& name) { return names.size() == 1 && name.first == names.front(); });
    if (known == kNames.end()) return refuse(key, value.dump());
    found_.loss = known->second;
  }

  void read_axolotl() {
    const Json* rl = take("rl");
    const Json* type = take("dpo_loss_type");
    if (rl == nullptr || *rl == false || *rl == "") return;
    const std::string name = rl->is_string() ? rl->get<std::string>() : rl->dump();
    if (name == "dpo") {
      name_loss("dpo_loss_type", type == nullptr ? Json("sigmoid") : *type);
    } else if (name == "ipo" || name == "orpo" || name == "simpo" || name == "kto") {
      found_.loss = name;
    } else {
      refuse("rl", name);
    }
  }

  void read_llama_factory() {
    const std::string stage = text("stage");
    const Json* type = take("pref_loss");
    if (stage == "dpo") {
      name_loss("pref_loss", type == nullptr ? Json("sigmoid") : *type);
    } else if (stage == "kto") {
      found_.loss = "kto";
    } else if (!stage.empty() && stage != "sft" && stage != "pt") {
      refuse("stage", stage);
    }
  }

  // A file of TRL does not name its trainer, so the arguments tell.
  void read_trl() {
    const auto has = [this](const char* name) { return file_.contains(name); };
    if (const Json* type = take("loss_type"); type != nullptr && *type != "nll") {
      return name_loss("loss_type", *type);
    }
    if (has("desirable_weight") || has("undesirable_weight")) {
      found_.loss = "kto";
    } else if (has("beta") || has("label_smoothing") || has("reference_free") ||
               has("precompute_ref_log_probs") || has("f_divergence_type") ||
               has("max_prompt_length")) {
      found_.loss = "dpo";
      found_.left.emplace_back("beta",
                               "the arguments are taken for DPO's; for those of ORPO or KTO set "
                               "train.loss");
    }
  }

  // Takes the first of the file's keys that has a value.
  void number(const char* ours, std::initializer_list<const char*> theirs, bool used = true) {
    for (const char* name : theirs) {
      if (take(name) == nullptr || !used) continue;
      found_.numbers.emplace_back(ours, name);
      return;
    }
  }

  void read_numbers() {
    const std::string& loss = found_.loss;
    const bool kto = loss == "kto", simpo = loss == "simpo";
    const bool smooths = loss == "dpo" || loss == "dpo-robust" || simpo;
    number("beta", {"orpo_alpha"}, loss == "orpo");
    const bool alpha = loss == "orpo" && !found_.numbers.empty();
    number("beta", {"rl_beta", "pref_beta", "beta"}, !loss.empty() && !alpha);
    number("gamma", {"simpo_gamma"}, simpo);
    // TRL takes no notice of it with the loss "sigmoid".
    const bool ignored = trainer_ == "TRL" && loss == "dpo";
    number("label_smoothing", {"dpo_label_smoothing", "label_smoothing"}, smooths && !ignored);
    const Json* smoothing = take("label_smoothing");
    if (ignored && smoothing != nullptr && *smoothing != 0) {
      found_.left.emplace_back("label_smoothing",
                               "TRL takes no notice of it with this loss; "
                               "preference.label_smoothing would be used");
    }
    number("desirable_weight", {"kto_desirable_weight", "kto_chosen_weight", "desirable_weight"},
           kto);
    number("undesirable_weight",
           {"kto_undesirable_weight", "kto_rejected_weight", "undesirable_weight"}, kto);
    if (simpo && trainer_ != "LLaMA-Factory" && !file_.contains("cpo_alpha")) {
      found_.left.emplace_back("cpo_alpha",
                               "without it TRL adds a loss of supervised fine-tuning (1.0); "
                               "Longshore adds none");
    }
  }

  void read_reference() {
    const std::string divergence = text("f_divergence_type");
    if (!divergence.empty() && divergence != "reverse_kl") {
      refuse("f_divergence_type", divergence);
    }
    found_.reference = text("ref_model");
  }

  const Json& file_;
  std::string_view trainer_;
  OtherPreference found_;
};

}  // namespace

OtherPreference read_other_preference(const Json& file, std::string_view trainer) {
  return PreferenceReader(file, trainer).read();
}

}  // namespace longshore
