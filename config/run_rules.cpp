#include "config/run_rules.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <set>

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
    check_groups();
    check_nvme();
    check_packed();
    check_files();
    check_overlap();
    check_corrections();
    check_adapter();
    check_date();
    check_loss();
    return std::move(problems_);
  }

 private:
  bool usable(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (places_.wrong.contains(name)) return false;
    }
    return true;
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

  void check_date() {
    if (!usable({"data.date"}) || is_date(config_.data.date)) return;
    const SourceLocation* place = place_of("data.date");
    problems_.push_back((place == nullptr ? places_.run_file : place->text()) + ": " +
                        assignment("data.date") + " is no day; expected one such as " +
                        "\"2024-07-26\"");
  }

  // Reports the problem at the first key, or at the second if the first has its default.
  void report(const char* first, const char* second, const std::string& relation,
              const std::string& advice) {
    const SourceLocation* place = place_of(first);
    if (place == nullptr && place_of(second) != nullptr) place = place_of(second);
    problems_.push_back((place == nullptr ? places_.run_file : place->text()) + ": " +
                        assignment(first) + " " + relation + " " + other(second) + advice);
  }

  void report_missing(const std::string& what, const std::string& addition) {
    problems_.push_back(places_.run_file + ": " + what + " is missing: " + addition);
  }

  void check_required() {
    for (const Section& section : run_file_sections()) {
      for (const Key& key : section.keys) {
        const std::string name = key.full_name();
        if (!key.required() || places_.wrong.contains(name)) continue;
        const bool empty = key.get(config_) == key.default_value();
        if (!empty) continue;
        const std::string addition =
            "add " + key.name + " = " + key.example + " under [" + section.name + "]";
        const SourceLocation* place = place_of(name.c_str());
        if (place == nullptr) {
          report_missing(name, addition);
        } else {
          problems_.push_back(place->text() + ": " + name + " is empty: " + addition);
        }
      }
    }
  }

  // Updates during backward start before the norm of all gradients is known.
  void check_overlap() {
    if (!usable({"optimizer.overlap", "train.max_grad_norm"})) return;
    if (config_.optimizer.overlap != UpdateOverlap::kBackward) return;
    if (config_.train.max_grad_norm == 0.0) return;
    report("optimizer.overlap", "train.max_grad_norm", "does not go with",
           ": set train.max_grad_norm = 0, or optimizer.overlap = \"forward\"");
  }

  // An adapter has no corrections in its files. A step that is committed while its backward runs
  // has no loads of its experts yet.
  void check_corrections() {
    if (!usable({"train.router_correction_rate", "adapter.kind", "optimizer.overlap",
                 "offload.optimizer"})) {
      return;
    }
    if (config_.train.router_correction_rate == 0.0) return;
    if (config_.adapter.on()) {
      report("train.router_correction_rate", "adapter.kind", "does not go with",
             ": an adapter has no corrections; leave it out");
    }
    if (config_.optimizer.overlap == UpdateOverlap::kBackward &&
        config_.offload.optimizer == OffloadSection::Optimizer::kNvme) {
      report("train.router_correction_rate", "optimizer.overlap", "does not go with",
             " and state on drives: set optimizer.overlap = \"forward\"");
    }
  }

  void check_weight(const char* key, double weight) {
    if (!usable({"train.loss", key}) || config_.train.loss == LossKind::kKto) return;
    if (weight != 1.0) report(key, "train.loss", "has no effect on", ": leave it out");
  }

  void check_loss() {
    if (!usable({"train.loss", "preference.label_smoothing", "preference.reference"})) return;
    const LossKind loss = config_.train.loss;
    if (!config_.preference.is_start() && !has_reference(loss)) {
      report("preference.reference", "train.loss", "has no effect on",
             ", which compares with no model: set preference.reference = \"start\"");
    }
    if (config_.preference.is_adapter_off() && !config_.adapter.on()) {
      report("preference.reference", "adapter.kind", "needs adapters, but",
             ": set preference.reference = \"start\"");
    }
    check_weight("preference.desirable_weight", config_.preference.desirable_weight);
    check_weight("preference.undesirable_weight", config_.preference.undesirable_weight);
    if (config_.preference.label_smoothing == 0.0) return;
    if (loss != LossKind::kIpo && loss != LossKind::kOrpo && loss != LossKind::kKto) return;
    report("train.loss", "preference.label_smoothing", "knows no smoothing of labels, but",
           ": set preference.label_smoothing = 0");
  }

  void check_length() {
    if (!usable({"train.steps", "train.epochs"})) return;
    const bool by_steps = config_.train.steps > 0;
    const bool by_epochs = config_.train.epochs > 0;
    if (by_steps && by_epochs) {
      report("train.steps", "train.epochs", "and", ": give one of them, or set the other to 0");
    } else if (!by_steps && !by_epochs && length_) {
      report_missing("the length of the run", "add steps = 100 or epochs = 1 under [train]");
    }
  }

  void check_batch() {
    if (!usable({"train.micro_batch", "train.sequences_per_step"})) return;
    if (config_.train.micro_batch > config_.train.sequences_per_step) {
      report("train.micro_batch", "train.sequences_per_step", "is more than", "");
    }
  }

  void check_schedule() {
    if (!usable({"schedule.name", "schedule.warmup_steps", "schedule.warmup_ratio",
                 "schedule.decay_steps", "train.steps"})) {
      return;
    }
    const ScheduleSection& schedule = config_.schedule;
    if (schedule.warmup_ratio > 0.0 && schedule.warmup_steps > 0) {
      report("schedule.warmup_ratio", "schedule.warmup_steps", "is the length of the warm-up, and",
             "; leave one of the two out, or set it to 0");
    }
    const bool wsd = schedule.name == ScheduleSection::Name::kWsd;
    if (wsd && schedule.decay_steps == 0) {
      report("schedule.name", "schedule.decay_steps", "needs a fall at the end, but",
             ": set schedule.decay_steps");
    }
    const int64_t steps = config_.train.steps;
    if (steps == 0) return;  // the trainer checks it when the data is known
    // The trainer shortens a warm-up that is longer than the run.
    if (wsd && schedule.decay_steps > steps - schedule.warmup_in(steps)) {
      const bool part = schedule.warmup_ratio > 0.0;
      report("schedule.decay_steps", "train.steps",
             "and " + other(part ? "schedule.warmup_ratio" : "schedule.warmup_steps") +
                 " are together more than",
             "");
    }
  }

  void check_eval() {
    if (!usable({"eval.every_steps", "data.eval"})) return;
    if (config_.eval.every_steps > 0 && config_.data.eval.empty() && config_.eval.split == 0.0 &&
        config_.eval.sets.empty()) {
      report("eval.every_steps", "data.eval", "needs files to evaluate on, but",
             ": name some, or set eval.sets or eval.split");
    }
    if (config_.eval.split > 0.0 && !config_.data.eval.empty()) {
      report("eval.split", "data.eval", "holds out a part of data.train, but",
             ": choose one of the two");
    }
    for (const char* key : {"eval.patience", "eval.keep_best"}) {
      const bool asked = std::string_view(key) == "eval.keep_best" ? config_.eval.keep_best
                                                                   : config_.eval.patience > 0;
      if (asked && config_.eval.every_steps == 0) {
        report(key, "eval.every_steps", "needs evaluations during the run, but", "");
      }
    }
    check_weights();
  }

  void check_weights() {
    if (!usable({"data.weights", "data.train"}) || config_.data.weights.empty()) return;
    if (config_.data.weights.size() != config_.data.train.size()) {
      report("data.weights", "data.train", "needs one number for each file, but", "");
    }
  }

  // A group's learning rate is relative to optimizer.lr.
  void check_groups() {
    if (!usable({"optimizer.groups", "optimizer.lr"}) || config_.optimizer.lr > 0) return;
    for (const ParameterGroup& group : config_.optimizer.groups) {
      if (!group.lr) continue;
      report("optimizer.groups", "optimizer.lr", "has an lr of its own, which is relative to", "");
      return;
    }
  }

  // A key that would be ignored is an error, because the run would not be what its file says.
  void check_adapter() {
    const AdapterSection& adapter = config_.adapter;
    if (!usable({"adapter.kind", "adapter.path"})) return;
    for (const Key& key : find_section("adapter")->keys) {
      const std::string name = key.full_name();
      const SourceLocation* place = place_of(name.c_str());
      if (place == nullptr || name == "adapter.kind" || places_.wrong.contains(name)) continue;
      if (key.get(config_) == key.default_value()) continue;
      if (!adapter.on()) {
        problems_.push_back(place->text() + ": " + name + " has no effect, because " +
                            other("adapter.kind") + "; set adapter.kind = \"lora\"");
      } else if (!adapter.is_new() && name != "adapter.path" && name != "adapter.base") {
        problems_.push_back(place->text() + ": " + name + " has no effect, because " +
                            other("adapter.path") + " says it in adapter_config.json");
      }
    }
    if (!adapter.on()) {
      if (config_.checkpoint.export_model == CheckpointSection::Export::kMerged) {
        report("checkpoint.export", "adapter.kind", "needs adapters, but", "");
      }
      return;
    }
    if (!config_.train.freeze.empty()) {
      report("train.freeze", "adapter.kind", "has no effect with",
             ", which freezes the whole model; adapter.train names what is trained beside it");
    }
    if (adapter.targets.empty() && adapter.is_new()) {
      report("adapter.targets", "adapter.kind", "names nothing to adapt, but", "");
    }
  }

  void check_nvme() {
    if (!usable(
            {"offload.optimizer", "offload.parameters", "offload.activations", "offload.nvme"})) {
      return;
    }
    const bool state = config_.offload.optimizer == OffloadSection::Optimizer::kNvme;
    const bool inputs = config_.offload.activations == OffloadSection::Activations::kNvme;
    if ((state || inputs) && config_.offload.nvme.empty()) {
      report(state ? "offload.optimizer" : "offload.activations", "offload.nvme",
             "needs directories, but", ": name one on each drive");
    }
    if (config_.offload.parameters == OffloadSection::Parameters::kNvme && !state) {
      report("offload.parameters", "offload.optimizer", "needs the state on the drives too, but",
             ": set offload.optimizer = \"nvme\"");
    }
    check_repeated_drives();
  }

  // Packed matrices are made from the model's files and stay in host memory.
  void check_packed() {
    if (!usable({"adapter.base", "adapter.kind", "offload.parameters", "offload.optimizer",
                 "model.init", "fsdp.gather", "preference.reference"}) ||
        !config_.adapter.packs()) {
      return;
    }
    const char* const start = "adapter.base";
    if (config_.offload.parameters != OffloadSection::Parameters::kHost) {
      report(start, "offload.parameters", "keeps the packed model in host memory, but",
             ": set offload.parameters = \"host\", or adapter.base = \"published\"");
    }
    if (config_.offload.optimizer == OffloadSection::Optimizer::kNvme) {
      report(start, "offload.optimizer", "keeps what is trained in host memory, but",
             ": set offload.optimizer = \"host\"");
    }
    if (config_.model.init == ModelSection::Init::kRandom) {
      report(start, "model.init", "needs the weights of the model's files, but", "");
    }
    if (config_.preference.is_adapter_off()) {
      report(start, "preference.reference", "packs the model that is trained over, and",
             " compares with the published one; set it to \"start\" or to a directory");
    }
    if (config_.fsdp.gather == GatherMode::kHost) {
      report(start, "fsdp.gather",
             "cannot be combined with this gather:", ": set fsdp.gather = \"auto\"");
    }
  }

  // Only frozen parameters can stay in the model's files, which a run never writes.
  void check_files() {
    if (!usable({"offload.parameters", "offload.optimizer", "adapter.kind", "train.freeze",
                 "model.init", "fsdp.gather"})) {
      return;
    }
    if (config_.offload.parameters != OffloadSection::Parameters::kFiles) return;
    if (!config_.adapter.on() && config_.train.freeze.empty()) {
      report("offload.parameters", "adapter.kind", "needs frozen parameters, but",
             ": set adapter.kind = \"lora\", or name parameters in train.freeze");
    }
    if (config_.model.init == ModelSection::Init::kRandom) {
      report("offload.parameters", "model.init", "needs the weights of the model's files, but", "");
    }
    if (config_.offload.optimizer == OffloadSection::Optimizer::kNvme) {
      report("offload.parameters", "offload.optimizer", "keeps what is trained in host memory, but",
             ": set offload.optimizer = \"host\"");
    }
    if (config_.fsdp.gather == GatherMode::kHost) {
      report("offload.parameters", "fsdp.gather", "has no shards in memory to copy, but",
             ": set fsdp.gather = \"auto\"");
    }
  }

  // Two stripes in the same directory would be the same file.
  void check_repeated_drives() {
    std::set<std::filesystem::path> seen;
    for (const std::string& directory : config_.offload.nvme) {
      std::filesystem::path path = std::filesystem::path(directory + "/").lexically_normal();
      if (seen.insert(std::move(path)).second) continue;
      const SourceLocation* place = place_of("offload.nvme");
      problems_.push_back((place == nullptr ? places_.run_file : place->text()) +
                          ": offload.nvme names " + quote_toml(directory) +
                          " twice; name one directory on each drive");
      return;
    }
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
