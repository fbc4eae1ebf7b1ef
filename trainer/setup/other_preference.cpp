// The loss over preferences that a file of Axolotl, LLaMA-Factory or TRL asks for.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/texts.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

constexpr const char* kLosses =
    "`init --from` converts supervised fine-tuning, and the losses sigmoid (dpo), robust, ipo, "
    "orpo, simpo and kto over preferences; not rewards";

constexpr const char* kNoEffect = "it has no effect on this loss";

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
    read_sft_weight();
    read_reference();
    return std::move(found_);
  }

 private:
  const Json* take(const char* name) { return in_.take(name); }
  void refuse(const std::string& key, const std::string& value) {
    in_.refuse(key + " = " + printable(value, 40), kLosses, "train.loss");
  }

  // Sets the loss of this name; `value` may be a list of one name, or of one beside "sft", TRL's
  // SFT term. `weights` is the key that may have the weight of each.
  void name_loss(const char* key, const Json& value, const char* weights = nullptr) {
    const std::vector<std::string> names = texts_of(value);
    const auto sft = static_cast<size_t>(std::ranges::find(names, "sft") - names.begin());
    const bool has_sft = names.size() == 2 && sft < 2;
    const size_t main = has_sft ? 1 - sft : 0;
    const auto known = std::ranges::find_if(kNames, [&](const auto& name) {
      return names.size() == (has_sft ? 2 : 1) && name.first == names[main];
    });
    if (known == kNames.end()) return refuse(key, value.dump());
    found_.loss = known->second;
    const Json* const given = weights == nullptr ? nullptr : take(weights);
    const std::optional<std::vector<double>> all = weights_of(given, names.size());
    if (!all || all->at(main) <= 0.0) {
      return in_.refuse(weights, "expected a positive weight for each loss, found " +
                                     printable(given->dump(), 40));
    }
    if (has_sft) set_sft_weight(all->at(sft) / all->at(main));
    if (all->at(main) == 1.0) return;
    in_.left(
        weights,
        "the loss that is not \"sft\" has the weight 1 in Longshore, so all are divided by its; "
        "so are gradients, whose norm train.max_grad_norm limits",
        "train.max_grad_norm");
  }

  // Returns the numbers of a list of `count`; 1 for each without a list. Nothing if it is no such
  // list.
  static std::optional<std::vector<double>> weights_of(const Json* list, size_t count) {
    if (list == nullptr) return std::vector<double>(count, 1.0);
    if (!list->is_array() || list->size() != count) return std::nullopt;
    std::vector<double> weights;
    for (const Json& element : *list) {
      const std::optional<double> weight = number_of(element);
      if (!weight || !(*weight >= 0.0)) return std::nullopt;
      weights.push_back(*weight);
    }
    return weights;
  }

  void set_sft_weight(double weight) {
    in_.set("preference.sft_weight", toml_real(weight));
    has_sft_weight_ = true;
  }

  void read_axolotl() {
    const Json* rl = take("rl");
    const Json* type = take("dpo_loss_type");
    for (const char* key : {"dpo_loss_type", "dpo_loss_weights"}) {
      if (take(key) != nullptr && (rl == nullptr || *rl != "dpo")) in_.needless(key, kNoEffect);
    }
    if (rl == nullptr || *rl == false || *rl == "") return;
    const std::string name = rl->is_string() ? rl->get<std::string>() : rl->dump();
    if (name == "dpo") {
      name_loss("dpo_loss_type", type == nullptr ? Json("sigmoid") : *type, "dpo_loss_weights");
    } else if (name == "ipo" || name == "orpo" || name == "simpo" || name == "kto") {
      found_.loss = name;
    } else {
      refuse("rl", name);
    }
  }

  void read_llama_factory() {
    const std::string stage = in_.text("stage");
    const Json* type = take("pref_loss");
    if (type != nullptr && stage != "dpo") in_.needless("pref_loss", kNoEffect);
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
    if (const Json* type = take("loss_type");
        type != nullptr && *type != "nll" && *type != "chunked_nll") {
      return name_loss("loss_type", *type, "loss_weights");
    }
    if (has("loss_weights")) return name_loss("loss_type", Json("sigmoid"), "loss_weights");
    if (has("desirable_weight") || has("undesirable_weight")) {
      found_.loss = "kto";
    } else if (has("beta") || has("label_smoothing") || has("reference_free") ||
               has("precompute_ref_log_probs") || has("f_divergence_type") ||
               has("max_prompt_length") || has("rpo_alpha")) {
      found_.loss = "dpo";
      in_.left("beta", "the arguments are taken for DPO's; for those of ORPO or KTO set train.loss",
               "train.loss");
    }
  }

  // Takes the first of the file's keys that has a value, and notes that all were read.
  void number(const char* ours, std::initializer_list<const char*> theirs, bool used = true) {
    bool taken = false;
    for (const char* name : theirs) {
      const Json* const value = take(name);
      if (value == nullptr) continue;
      if (!used || taken) {
        in_.needless(name, kNoEffect);
        continue;
      }
      taken = true;
      if (const auto found = in_.number(name)) {
        in_.set("preference." + std::string(ours), toml_real(*found));
      }
    }
  }

  void read_numbers() {
    const std::string& loss = found_.loss;
    const bool kto = loss == "kto", simpo = loss == "simpo";
    const bool smooths = loss == "dpo" || loss == "dpo-robust" || simpo;
    number("beta", {"orpo_alpha"}, loss == "orpo");
    const bool alpha = loss == "orpo" && in_.has("orpo_alpha");
    number("beta", {"rl_beta", "pref_beta", "beta"}, !loss.empty() && !alpha);
    number("gamma", {"simpo_gamma"}, simpo);
    // TRL takes no notice of it with the loss "sigmoid".
    const bool ignored = trainer_ == "TRL" && loss == "dpo";
    if (ignored) {
      const Json* smoothing = take("label_smoothing");
      if (smoothing != nullptr && *smoothing != 0) {
        in_.left("label_smoothing",
                 "TRL takes no notice of it with this loss; preference.label_smoothing would be "
                 "used");
      }
    } else {
      number("label_smoothing", {"dpo_label_smoothing", "label_smoothing"}, smooths);
    }
    number("desirable_weight", {"kto_desirable_weight", "kto_chosen_weight", "desirable_weight"},
           kto);
    number("undesirable_weight",
           {"kto_undesirable_weight", "kto_rejected_weight", "undesirable_weight"}, kto);
  }

  // Reads the weight of the SFT term, apart from TRL's loss "sft".
  void read_sft_weight() {
    const std::string& loss = found_.loss;
    const bool simpo = loss == "simpo",
               ratios = loss == "dpo" || loss == "dpo-robust" || loss == "ipo";
    number("sft_weight", {"cpo_alpha"}, simpo);
    // TRL's default, which is also Axolotl's.
    if (simpo && trainer_ != "LLaMA-Factory" && !in_.has("cpo_alpha")) set_sft_weight(1.0);
    number("sft_weight", {"rpo_alpha"}, ratios && !has_sft_weight_);
    const Json* const factory = take("pref_ftx");
    if (factory == nullptr) return;
    const bool asked = *factory != 0;
    if (asked && (simpo || ratios)) {
      number("sft_weight", {"pref_ftx"});
      in_.left("pref_ftx",
               "LLaMA-Factory takes the mean over the tokens of each chosen answer, "
               "preference.sft_weight that over the tokens of all chosen answers of a step",
               "preference.sft_weight");
    } else if (asked && !loss.empty()) {
      in_.left("pref_ftx",
               "preference.sft_weight adds no SFT loss to " + loss + "; the run trains without it");
    } else {
      in_.needless("pref_ftx", kNoEffect);
    }
  }

  void read_reference() {
    const std::string divergence = in_.text("f_divergence_type");
    if (!divergence.empty() && divergence != "reverse_kl") {
      refuse("f_divergence_type", divergence);
    }
    const std::string reference = in_.text("ref_model");
    if (reference.empty()) return;
    if (found_.loss.empty() || found_.loss == "orpo" || found_.loss == "simpo") {
      in_.needless("ref_model", kNoEffect);
    } else {
      found_.reference = reference;
    }
  }

  const Json& file_;
  std::string_view trainer_;
  bool has_sft_weight_ = false;
  OtherPreference found_;
  OtherReader in_{file_, found_};
};

}  // namespace

OtherPreference read_other_preference(const Json& file, std::string_view trainer) {
  return PreferenceReader(file, trainer).read();
}

}  // namespace longshore
