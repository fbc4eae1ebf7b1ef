#include "config/run_rules.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <numeric>
#include <set>
#include <utility>

#include "base/texts.h"
#include "config/field_table.h"

namespace longshore {
namespace {

// Returns whether the text is an existing day such as "2024-07-26".
bool is_date(const std::string& text) {
  int year = 0;
  unsigned month = 0, day = 0;
  int read = 0;
  if (text.size() != 10 || text[4] != '-' || text[7] != '-' ||
      text.find_first_not_of("0123456789-") != std::string::npos ||
      std::sscanf(text.c_str(), "%4d-%2u-%2u%n", &year, &month, &day, &read) != 3 || read != 10) {
    return false;
  }
  return std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(month),
                                     std::chrono::day(day))
      .ok();
}

class Rules {
 public:
  Rules(const RunConfig& config, const KeyPlaces& places, const LoadOptions& options)
      : config_(config), places_(places), length_(options.length) {}

  std::vector<std::string> broken() {
    check_required();
    check_length();
    check_batch();
    check_schedule();
    check_eval();
    check_mix();
    check_groups();
    check_updates();
    check_nvme();
    check_packed();
    check_files();
    check_overlap();
    check_corrections();
    check_adapter();
    check_date();
    check_tokens();
    check_loss();
    return std::move(problems_);
  }

 private:
  bool usable(std::initializer_list<const char*> names) const {
    return std::ranges::none_of(names, [&](auto name) { return places_.wrong.contains(name); });
  }

  const SourceLocation* place_of(const char* name) const {
    const auto found = places_.said.find(name);
    return found == places_.said.end() ? nullptr : &found->second;
  }

  std::string assignment(const char* name) const {
    const Key& key = key_named(name);
    return std::string(name) + " = " + toml_text(key, key.get(config_));
  }

  // Returns "train.epochs = 1.0 (run.toml:11:10)".
  std::string other(const char* name) const {
    const SourceLocation* place = place_of(name);
    return assignment(name) + " (" + (place == nullptr ? "default" : place->text()) + ")";
  }

  void report_at(const SourceLocation* place, const std::string& problem) {
    problems_.push_back((place == nullptr ? places_.run_file : place->text()) + ": " + problem);
  }

  // Reports the problem at the first key, or at the second if the first has its default.
  void report_if(bool broken, const char* first, const char* second, const std::string& relation,
                 const std::string& advice) {
    if (!broken) return;
    const SourceLocation* place = place_of(first);
    report_at(place == nullptr ? place_of(second) : place,
              assignment(first) + " " + relation + " " + other(second) + advice);
  }

  void check_required() {
    for (const Section& section : run_file_sections()) {
      for (const Key& key : section.keys) {
        const std::string name = key.full_name();
        if (!key.required() || places_.wrong.contains(name)) continue;
        if (key.get(config_) != key.default_value()) continue;
        const SourceLocation* place = place_of(name.c_str());
        report_at(place, name + (place == nullptr ? " is missing" : " is empty") + ": add " +
                             key.name + " = " + key.example + " under [" + section.name + "]");
      }
    }
  }

  // Updates during backward start before the norm of all gradients is known.
  void check_overlap() {
    if (!usable({"optimizer.overlap", "train.max_grad_norm"})) return;
    report_if(backward_updates() && config_.train.max_grad_norm != 0.0, "optimizer.overlap",
              "train.max_grad_norm", "does not go with",
              ": set train.max_grad_norm = 0, or optimizer.overlap = \"forward\"");
  }

  // An adapter has no corrections in its files. A step that is committed while its backward runs
  // has no loads of its experts yet.
  void check_corrections() {
    const char* const rate = "train.router_correction_rate";
    if (!usable({rate, "adapter.kind", "optimizer.overlap", "offload.optimizer"})) return;
    if (config_.train.router_correction_rate == 0.0) return;
    report_if(config_.adapter.on(), rate, "adapter.kind", "does not go with",
              ": it has no effect on an adapter; remove it");
    report_if(backward_updates() && state_on_drives(), rate, "optimizer.overlap",
              "does not go with", " and state on drives: set optimizer.overlap = \"forward\"");
  }

  void check_weight(const char* key, double weight) {
    if (!usable({"train.loss", key}) || config_.train.loss == LossKind::kKto) return;
    report_if(weight != 1.0, key, "train.loss", "has no effect on", ": leave it out");
  }

  void check_sft_weight() {
    const char* const key = "preference.sft_weight";
    if (!usable({"train.loss", key}) || config_.preference.sft_weight == 0.0) return;
    const LossKind loss = config_.train.loss;
    const bool odds = loss == LossKind::kOrpo, rows = loss == LossKind::kKto;
    report_if(odds, key, "train.loss", "does not go with",
              ", whose first term is an SFT loss already: set preference.sft_weight = 0, or change "
              "preference.beta, the weight of its other term");
    report_if(rows, key, "train.loss", "does not go with",
              ", whose rows are no pairs with a chosen answer: set preference.sft_weight = 0");
    report_if(!odds && !rows && !traits_of(loss).paired(), key, "train.loss", "has no effect on",
              ": leave it out");
  }

  void check_loss() {
    check_sft_weight();
    if (!usable({"train.loss", "preference.label_smoothing", "preference.reference"})) return;
    const LossKind loss = config_.train.loss;
    const PreferenceSection& preference = config_.preference;
    report_if(!preference.is_start() && !traits_of(loss).reference, "preference.reference",
              "train.loss", "has no effect on",
              ", which compares with no model: set preference.reference = \"start\"");
    report_if(preference.is_adapter_off() && !config_.adapter.on(), "preference.reference",
              "adapter.kind", "needs adapters, but", ": set preference.reference = \"start\"");
    check_weight("preference.desirable_weight", preference.desirable_weight);
    check_weight("preference.undesirable_weight", preference.undesirable_weight);
    const bool smooths_none =
        loss == LossKind::kIpo || loss == LossKind::kOrpo || loss == LossKind::kKto;
    report_if(preference.label_smoothing != 0.0 && smooths_none, "train.loss",
              "preference.label_smoothing", "knows no smoothing of labels, but",
              ": set preference.label_smoothing = 0");
    // The loss and its gradient are divided by 1 - 2 e, which is nearly 0 here.
    report_if(preference.label_smoothing > 0.49 && loss == LossKind::kDpoRobust, "train.loss",
              "preference.label_smoothing", "divides by 1 - 2 preference.label_smoothing, and",
              ": set it to 0.49 at most");
  }

  void check_length() {
    if (!usable({"train.steps", "train.epochs"})) return;
    const bool by_steps = config_.train.steps > 0, by_epochs = config_.train.epochs > 0;
    report_if(by_steps && by_epochs, "train.steps", "train.epochs", "and",
              ": give one of them, or set the other to 0");
    if (by_steps || by_epochs || !length_) return;
    report_at(nullptr,
              "the length of the run is missing: add steps = 100 or epochs = 1 under [train]");
  }

  void check_batch() {
    if (!usable({"train.micro_batch", "train.sequences_per_step"})) return;
    report_if(config_.train.micro_batch > config_.train.sequences_per_step, "train.micro_batch",
              "train.sequences_per_step", "is more than", "");
  }

  void check_schedule() {
    if (!usable({"schedule.name", "schedule.warmup_steps", "schedule.warmup_ratio",
                 "schedule.decay_steps", "train.steps"})) {
      return;
    }
    const ScheduleSection& schedule = config_.schedule;
    const bool part = schedule.warmup_ratio > 0.0;
    report_if(part && schedule.warmup_steps > 0, "schedule.warmup_ratio", "schedule.warmup_steps",
              "is the length of the warm-up, and", "; leave one of the two out, or set it to 0");
    const bool wsd = schedule.name == ScheduleSection::Name::kWsd;
    report_if(wsd && schedule.decay_steps == 0, "schedule.name", "schedule.decay_steps",
              "needs a fall at the end, but", ": set schedule.decay_steps");
    const int64_t steps = config_.train.steps;
    if (steps == 0) return;  // the trainer checks it when the data is known
    // The trainer shortens a warm-up that is longer than the run.
    const std::string warmup = other(part ? "schedule.warmup_ratio" : "schedule.warmup_steps");
    report_if(wsd && schedule.decay_steps > steps - schedule.warmup_in(steps),
              "schedule.decay_steps", "train.steps", "and " + warmup + " are together more than",
              "");
  }

  void check_eval() {
    if (!usable({"eval.every_steps", "data.eval"})) return;
    const EvalSection& eval = config_.eval;
    const bool names_files = !config_.data.eval.empty();
    report_if(eval.every_steps > 0 && !names_files && eval.split == 0.0 && eval.sets.empty(),
              "eval.every_steps", "data.eval", "needs files to evaluate on, but",
              ": name some, or set eval.sets or eval.split");
    report_if(eval.split > 0.0 && names_files, "eval.split", "data.eval",
              "holds out a part of data.train, but", ": choose one of the two");
    const char* const needs = "needs evaluations during the run, but";
    const bool none = eval.every_steps == 0;
    report_if(none && eval.patience > 0, "eval.patience", "eval.every_steps", needs, "");
    report_if(none && eval.keep_best, "eval.keep_best", "eval.every_steps", needs, "");
  }

  void check_mix() {
    const char* const probabilities = "data.probabilities";
    if (!usable({"data.weights", "data.train", "data.mix", probabilities})) return;
    const DataSection& data = config_.data;
    for (const auto& [key, numbers] : {std::pair("data.weights", &data.weights),
                                       std::pair(probabilities, &data.probabilities)}) {
      report_if(!numbers->empty() && numbers->size() != data.train.size(), key, "data.train",
                "needs one number for each file, but", "");
    }
    const bool mixes = data.mix != DataSection::Mix::kConcat;
    report_if(mixes && !data.weights.empty(), "data.weights", "data.mix",
              "says how often files are read, and so does", ": choose one of the two");
    report_if(!mixes && !data.probabilities.empty(), probabilities, "data.mix",
              "has no effect with", ": set it to \"exhaust\" or \"restart\"");
    const double sum = std::accumulate(data.probabilities.begin(), data.probabilities.end(), 0.0);
    // Thirds may be written as 0.333.
    if (data.probabilities.empty() || std::abs(sum - 1.0) <= 0.005) return;
    report_at(place_of(probabilities), assignment(probabilities) + ": their sum is " +
                                           formatted("%.4g", sum) +
                                           "; it must be 1, to within 0.005");
  }

  // One update with larger numbers makes weights infinite before a loss can show it.
  void check_updates() {
    if (!usable({"optimizer.lr", "optimizer.weight_decay", "optimizer.groups"})) return;
    const OptimizerSection& optimizer = config_.optimizer;
    const auto leaves_fp32 = [](double lr, double decay) {
      return std::max(lr, lr * decay) > 1e38;
    };
    const auto group_leaves = [&](const ParameterGroup& group) {
      return leaves_fp32(group.lr.value_or(optimizer.lr),
                         group.weight_decay.value_or(optimizer.weight_decay));
    };
    const char* const limit =
        ": a learning rate, and its product with the weight decay, may be at most 1e38";
    const bool whole = leaves_fp32(optimizer.lr, optimizer.weight_decay);
    report_if(whole, "optimizer.lr", "optimizer.weight_decay", "leaves fp32 with", limit);
    report_if(!whole && std::ranges::any_of(optimizer.groups, group_leaves), "optimizer.groups",
              "optimizer.lr", "leaves fp32 with", limit);
  }

  // A group's learning rate is relative to optimizer.lr.
  void check_groups() {
    if (!usable({"optimizer.groups", "optimizer.lr"}) || config_.optimizer.lr > 0) return;
    const auto has_rate = [](const ParameterGroup& group) { return group.lr.has_value(); };
    report_if(std::ranges::any_of(config_.optimizer.groups, has_rate), "optimizer.groups",
              "optimizer.lr", "sets lr for a group; group rates are relative to", "");
  }

  // A key that would be ignored is an error, because the run would not be what its file says.
  void check_adapter() {
    const AdapterSection& adapter = config_.adapter;
    if (!usable({"adapter.kind", "adapter.path"})) return;
    // adapter.path alone asks for its adapter, but not beside a kind that is said to be none.
    const bool off = adapter.kind == AdapterSection::Kind::kNone &&
                     (adapter.is_new() || place_of("adapter.kind") != nullptr);
    for (const Key& key : find_section("adapter")->keys) {
      const std::string name = key.full_name();
      const SourceLocation* place = place_of(name.c_str());
      if (place == nullptr || name == "adapter.kind" || places_.wrong.contains(name)) continue;
      if (key.get(config_) == key.default_value()) continue;
      if (!off) continue;
      report_at(place, name + " has no effect, because " + other("adapter.kind") +
                           "; set adapter.kind = \"lora\"");
    }
    const bool merges = config_.checkpoint.export_model == CheckpointSection::Export::kMerged;
    report_if(merges && !adapter.on(), "checkpoint.export", "adapter.kind", "needs adapters, but",
              "");
    if (!adapter.on()) return;
    report_if(!config_.train.freeze.empty(), "train.freeze", "adapter.kind", "has no effect with",
              ", which freezes the whole model; adapter.train names what is trained as well");
    report_if(adapter.bias == AdapterBias::kAll && !adapter.train.empty(), "adapter.bias",
              "adapter.train", "does not go with",
              ": PEFT would train the biases of these modules twice; set \"lora_only\"");
    for (const PatternNumber& one : adapter.rank_pattern) {
      if (one.number == std::floor(one.number)) continue;
      report_at(
          place_of("adapter.rank_pattern"),
          "adapter.rank_pattern: the rank of " + quote_toml(one.pattern) + " must be an integer");
    }
    report_if(adapter.targets.empty() && adapter.is_new(), "adapter.targets", "adapter.kind",
              "names nothing to adapt, but", "");
    report_if(adapter.any_base && adapter.is_new(), "adapter.any_base", "adapter.path",
              "has no effect with", ": a new adapter belongs to no other model");
  }

  void check_nvme() {
    if (!usable(
            {"offload.optimizer", "offload.parameters", "offload.activations", "offload.nvme"})) {
      return;
    }
    const OffloadSection& offload = config_.offload;
    const bool state = state_on_drives();
    const bool inputs = offload.activations == OffloadSection::Activations::kNvme;
    report_if((state || inputs) && offload.nvme.empty(),
              state ? "offload.optimizer" : "offload.activations", "offload.nvme",
              "needs directories, but", ": name one on each drive");
    report_if(offload.parameters == OffloadSection::Parameters::kNvme && !state,
              "offload.parameters", "offload.optimizer", "needs the state on the drives too, but",
              ": set offload.optimizer = \"nvme\"");
    check_repeated_drives();
  }

  // Packed matrices are made at the start and stay in host memory.
  void check_packed() {
    const char* const base = "adapter.base";
    if (!usable({base, "adapter.kind", "offload.parameters", "offload.optimizer", "fsdp.gather",
                 "preference.reference"}) ||
        !config_.adapter.packs()) {
      return;
    }
    report_if(config_.offload.parameters != OffloadSection::Parameters::kHost, base,
              "offload.parameters", "keeps the packed model in host memory, but",
              ": set offload.parameters = \"host\", or adapter.base = \"published\"");
    check_trained_in_host(base);
    report_if(config_.preference.is_adapter_off(), base, "preference.reference",
              "packs the model that is trained over, and",
              " compares with the published one; set it to \"start\" or to a directory");
    report_if(config_.fsdp.gather == GatherMode::kHost, base, "fsdp.gather",
              "cannot be combined with this gather:", ": set fsdp.gather = \"auto\"");
  }

  // Only frozen parameters can stay in the model's files, which a run never writes.
  void check_files() {
    const char* const files = "offload.parameters";
    if (!usable({files, "offload.optimizer", "adapter.kind", "train.freeze", "model.init",
                 "fsdp.gather"}) ||
        config_.offload.parameters != OffloadSection::Parameters::kFiles) {
      return;
    }
    report_if(!config_.adapter.on() && config_.train.freeze.empty(), files, "adapter.kind",
              "needs frozen parameters, but",
              ": set adapter.kind = \"lora\", or name parameters in train.freeze");
    check_has_weights(files);
    check_trained_in_host(files);
    report_if(config_.fsdp.gather == GatherMode::kHost, files, "fsdp.gather",
              "has no shards in memory to copy, but", ": set fsdp.gather = \"auto\"");
  }

  void check_trained_in_host(const char* key) {
    report_if(state_on_drives(), key, "offload.optimizer",
              "keeps what is trained in host memory, but", ": set offload.optimizer = \"host\"");
  }

  void check_has_weights(const char* key) {
    report_if(config_.model.init == ModelSection::Init::kRandom, key, "model.init",
              "needs the weights of the model's files, but", "");
  }

  // Two stripes in the same directory would be the same file.
  void check_repeated_drives() {
    std::set<std::filesystem::path> seen;
    for (const std::string& directory : config_.offload.nvme) {
      std::filesystem::path path = std::filesystem::path(directory + "/").lexically_normal();
      if (seen.insert(std::move(path)).second) continue;
      report_at(place_of("offload.nvme"), "offload.nvme names " + quote_toml(directory) +
                                              " twice; name one directory on each drive");
      return;
    }
  }

  void check_tokens() {
    const char* const ordinary = "tokenizer.add_tokens";
    const char* const special = "tokenizer.add_special_tokens";
    if (!usable({ordinary, special})) return;
    std::set<std::string> seen;
    for (const auto& [key, tokens] : {std::pair(ordinary, &config_.tokenizer.add_tokens),
                                      std::pair(special, &config_.tokenizer.add_special_tokens)}) {
      for (const std::string& token : *tokens) {
        if (token.empty()) {
          report_at(place_of(key), std::string(key) + " names an empty text; remove it");
        } else if (!seen.insert(token).second) {
          report_at(place_of(key), std::string(key) + " names " + quote_toml(token) +
                                       " a second time; name each token once");
        }
      }
    }
  }

  void check_date() {
    if (!usable({"data.date"}) || is_date(config_.data.date)) return;
    report_at(place_of("data.date"),
              assignment("data.date") + " is no day; expected one such as \"2024-07-26\"");
  }

  bool backward_updates() const { return config_.optimizer.overlap == UpdateOverlap::kBackward; }
  bool state_on_drives() const {
    return config_.offload.optimizer == OffloadSection::Optimizer::kNvme;
  }

  const RunConfig& config_;
  const KeyPlaces& places_;
  const bool length_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> broken_rules(const RunConfig& config, const KeyPlaces& places,
                                      const LoadOptions& options) {
  return Rules(config, places, options).broken();
}

}  // namespace longshore
