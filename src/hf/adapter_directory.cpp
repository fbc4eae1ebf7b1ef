#include "hf/adapter_directory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/name_pattern.h"
#include "base/texts.h"
#include "hf/adapter_selection.h"
#include "hf/directory_entry.h"
#include "hf/hub_cache.h"
#include "hf/problem_list.h"
#include "hf/weight_loader.h"

namespace longshore {
namespace {

constexpr JsonLimits kConfigLimits = {.max_bytes = kMiB, .max_depth = 16, .max_values = 100'000};
constexpr int64_t kMaxRank = 65'536;
constexpr double kMaxAlpha = 1e9;
constexpr size_t kMaxWholeModules = 1000;
constexpr size_t kMaxProblems = 20;  // that are printed
constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";  // of DoRA
// The two matrices of an embedding's adapter, which are the transposes of those of a matrix of its
// size.
constexpr std::string_view kLookupA = ".lora_embedding_A";
constexpr std::string_view kLookupB = ".lora_embedding_B";
constexpr const char* kMerge =
    "; merge the adapter into its model with PEFT's merge_and_unload, and train a new one on that";

// Keys that say nothing about the numbers of a run: notes, and settings of PEFT's kinds of start,
// which init_lora_weights chooses.
constexpr std::array kNotes = {
    "auto_mapping",  "corda_config", "eva_config",        "inference_mode", "lora_ga_config",
    "megatron_core", "peft_version", "qalora_group_size", "revision",       "runtime_config"};
// Keys that SettingsReader reads one by one.
constexpr std::array kRead = {"alpha_pattern",
                              "base_model_name_or_path",
                              "bias",
                              "ensure_weight_tying",
                              "exclude_modules",
                              "fan_in_fan_out",
                              "init_lora_weights",
                              "layers_pattern",
                              "layers_to_transform",
                              "lora_alpha",
                              "lora_dropout",
                              "modules_to_save",
                              "peft_type",
                              "r",
                              "rank_pattern",
                              "target_modules",
                              "target_parameters",
                              "task_type",
                              "use_dora",
                              "use_rslora"};

struct Unsupported {
  std::string_view key;
  std::string_view why;
};
// Known keys that are only accepted as null, false or empty.
constexpr Unsupported kUnsupported[] = {
    {"alora_invocation_tokens", "the adapter would act on a part of each text only"},
    {"arrow_config", "a router would choose between adapters"},
    {"kasa_config", "singular values of the model's weights would be cut off"},
    {"layer_replication", "layers would be repeated"},
    {"loftq_config", "the model's weights were quantised when the adapter was made"},
    {"lora_bias", "B would have a bias"},
    {"megatron_config", "it describes a model of Megatron"},
    {"monteclora_config", "noise would be added to the adapter"},
    {"trainable_token_indices", "single rows of the embedding would be trained"},
    {"use_bdlora", "A or B would be block-diagonal"},
    {"use_qalora", "inputs would be pooled in groups"},
    {"velora_config", "the gradient of A would be compressed"},
};

bool is_neutral(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// SettingsReader: reads adapter_config.json and collects what is wrong with it.
class SettingsReader {
 public:
  SettingsReader(const Json& config, std::string path) : config_(config), path_(std::move(path)) {}

  // Throws ConfigError with one line for each problem.
  AdapterSettings read() {
    read_kind();
    read_numbers();
    read_targets();
    settings_.parameters = texts("target_parameters");
    settings_.ranks = numbers("rank_pattern", static_cast<double>(kMaxRank), /*whole=*/true);
    settings_.alphas = numbers("alpha_pattern", kMaxAlpha, /*whole=*/false);
    settings_.trained = texts("modules_to_save");
    if (settings_.trained.size() > kMaxWholeModules) {
      refuse("modules_to_save", "names more than " + std::to_string(kMaxWholeModules) + " modules");
    }
    if (const Json* const base = find("base_model_name_or_path")) {
      if (base->is_string()) {
        settings_.base = base->get<std::string>();
      } else {
        refuse("base_model_name_or_path", "must be a text");
      }
    }
    check_other_keys();
    if (problem_count_ > kMaxProblems) {
      problems_.push_back("and " + std::to_string(problem_count_ - kMaxProblems) + " more");
    }
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return std::move(settings_);
  }
  // Returns whether only the weights identify all targets; those of the settings are then a
  // superset, or empty.
  bool targets_open() const { return targets_open_; }
  const AdapterSelection& selection() const { return *selection_; }

 private:
  // Returns nullptr for null too.
  const Json* find(const char* key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }
  void refuse(const std::string& key, const std::string& why) {
    if (++problem_count_ > kMaxProblems) return;
    const auto found = config_.find(key);
    const std::string value =
        found == config_.end() ? "" : " = " + printable(found->dump(-1, ' ', true));
    problems_.push_back(path_ + ": " + printable(key) + value + ": " + why);
  }

  void read_kind() {
    const Json* const kind = find("peft_type");
    if (kind == nullptr || *kind != "LORA") {
      refuse("peft_type", "only \"LORA\" is supported" + std::string(kMerge));
    }
    const Json* const task = find("task_type");
    if (task != nullptr && *task != "CAUSAL_LM") {
      refuse("task_type", "only adapters of \"CAUSAL_LM\" can be trained");
    }
    if (const Json* const bias = find("bias")) {
      const auto is_said = [bias](const auto& known) { return *bias == std::string(known.first); };
      const auto* const found = std::ranges::find_if(kAdapterBiases, is_said);
      if (found == kAdapterBiases.end()) {
        refuse("bias", "must be \"none\", \"lora_only\" or \"all\"");
      } else {
        settings_.bias = found->second;
      }
    }
    const Json* const start = find("init_lora_weights");
    if (start == nullptr || start->is_boolean()) return;
    constexpr std::array kKeepsTheModel = {"gaussian", "orthogonal", "eva"};
    const auto is_start = [&](const char* name) { return *start == name; };
    if (std::ranges::none_of(kKeepsTheModel, is_start)) {
      refuse("init_lora_weights",
             "such an adapter fits changed weights of the model, or trains otherwise; save it with "
             "PEFT's save_pretrained(..., path_initial_model_for_weight_conversion=...), which "
             "makes a plain one");
    }
  }

  bool flag(const char* key) {
    const Json* const value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(key, "must be true or false");
    return *value == true;
  }

  void read_numbers() {
    settings_.rslora = flag("use_rslora");
    settings_.dora = flag("use_dora");
    settings_.transposed = flag("fan_in_fan_out");
    settings_.tied = flag("ensure_weight_tying");
    if (config_.contains("r")) {
      const Json& rank = config_.at("r");
      if (rank.is_number_integer() && rank >= 1 && rank <= kMaxRank) {
        settings_.rank = rank.get<int64_t>();
      } else {
        refuse("r", "must be an integer from 1 to " + std::to_string(kMaxRank));
      }
    }
    if (config_.contains("lora_alpha")) {
      const Json& alpha = config_.at("lora_alpha");
      if (alpha.is_number() && alpha > 0.0 && alpha <= kMaxAlpha) {
        settings_.alpha = alpha.get<double>();
      } else {
        refuse("lora_alpha", "must be a number above 0, at most 1e9");
      }
    }
    if (const Json* const dropout = find("lora_dropout")) {
      if (dropout->is_number() && *dropout >= 0.0 && *dropout < 1.0) {
        settings_.dropout = dropout->get<double>();
      } else {
        refuse("lora_dropout", "must be a number from 0, below 1");
      }
    }
  }

  void read_targets() {
    const Json* const targets = find("target_modules");
    for (const char* key : {"exclude_modules", "layers_to_transform"}) {
      const Json* const value = find(key);
      if (value != nullptr && !is_neutral(*value)) targets_open_ = true;
    }
    if (targets != nullptr && targets->is_array()) {
      settings_.targets = texts("target_modules");
    } else if (targets == nullptr || targets->is_string()) {
      const std::string text = targets == nullptr ? "" : targets->get<std::string>();
      if (text == kAllLinear) {
        settings_.targets = {text};
      } else {
        targets_open_ = true;
      }
    } else {
      refuse("target_modules", "must be a list of names or a text");
    }
    selection_.emplace(
        config_, [this](const std::string& key, const std::string& why) { refuse(key, why); });
  }

  // Reads a table of patterns and numbers above 0.
  std::vector<PatternNumber> numbers(const char* key, double most, bool whole) {
    std::vector<PatternNumber> list;
    const Json* const table = find(key);
    if (table == nullptr || is_neutral(*table)) return list;
    const auto fits = [&](const Json& value) {
      return (whole ? value.is_number_integer() : value.is_number()) && value > 0.0 &&
             value <= most;
    };
    if (!table->is_object() || !std::ranges::all_of(*table, fits)) {
      refuse(key, "must be a table of patterns and " + std::string(whole ? "integers" : "numbers") +
                      " above 0, at most " + formatted("%.0f", most));
      return list;
    }
    for (const auto& [pattern, value] : table->items()) {
      list.push_back({pattern, value.get<double>()});
    }
    try {
      const NumbersByPattern matcher(list);
    } catch (const ConfigError& error) {
      refuse(key, error.what());
      list.clear();
    }
    return list;
  }

  std::vector<std::string> texts(const char* key) {
    std::vector<std::string> list;
    const Json* const value = find(key);
    if (value == nullptr) return list;
    const auto is_name = [](const Json& element) {
      return element.is_string() && !element.get_ref<const std::string&>().empty();
    };
    if (!value->is_array() || !std::ranges::all_of(*value, is_name)) {
      refuse(key, "must be a list of names");
      return list;
    }
    for (const Json& element : *value) list.push_back(element.get<std::string>());
    return list;
  }

  void check_other_keys() {
    for (const auto& [key, value] : config_.items()) {
      const auto is_key = [&name = key](const char* known) { return name == known; };
      if (std::ranges::any_of(kNotes, is_key) || std::ranges::any_of(kRead, is_key)) continue;
      if (is_neutral(value)) continue;
      const auto* const known = std::ranges::find(kUnsupported, key, &Unsupported::key);
      if (known != std::end(kUnsupported)) {
        refuse(key, "not supported: " + std::string(known->why) + kMerge);
      } else {
        refuse(key, "unknown; remove it if the adapter's numbers do not depend on it");
      }
    }
  }

  const Json& config_;
  std::string path_;
  AdapterSettings settings_;
  bool targets_open_ = false;
  std::optional<AdapterSelection> selection_;
  std::vector<std::string> problems_;
  size_t problem_count_ = 0;
};

// TensorCheck: compares the tensors of the file with the settings.
class TensorCheck {
 public:
  TensorCheck(const SafetensorsFile& file, const AdapterSettings& settings)
      : file_(file),
        settings_(settings),
        targets_(settings.targets.begin(), settings.targets.end()),
        ranks_(settings.ranks) {
    for (const std::string& name : settings.parameters) {
      if (name.ends_with(".weight")) {
        const std::string module = name.substr(0, name.rfind('.'));
        targets_.insert(module);
        routers_.insert(module.substr(module.rfind('.') + 1));
      } else {
        has_experts_ = true;  // their adapters have the names of the module of all experts
      }
    }
  }

  // Throws one DataError with all problems.
  void run() {
    bool any = false;
    for (const TensorInfo& tensor : file_.tensors()) {
      const std::string_view name = tensor.name;
      any = any || name.ends_with(kA) || name.ends_with(kLookupA);
      if (!name.starts_with(kAdapterNamePrefix)) {
        add(tensor, "its name does not begin with \"" + std::string(kAdapterNamePrefix) +
                        "\", as those of PEFT do");
      } else if (!model_dtype(tensor.dtype)) {
        add(tensor, "dtype " + std::string(name_of(tensor.dtype)) +
                        ": only F32, F16 and BF16 can be trained");
      } else if (name.ends_with(kA) || name.ends_with(kB)) {
        check_factor(tensor, name.ends_with(kA), kA, kB);
      } else if (name.ends_with(kLookupA) || name.ends_with(kLookupB)) {
        check_factor(tensor, name.ends_with(kLookupA), kLookupA, kLookupB);
      } else if (settings_.dora && name.ends_with(kMagnitude)) {
        check_magnitude(tensor);
      } else {
        check_whole(tensor, name.substr(kAdapterNamePrefix.size()));
      }
    }
    if (!any) problems_.add(file_.path() + ": no tensor ends with \"" + std::string(kA) + "\"");
    for (const std::string& module : settings_.trained) {
      if (found_.contains(module)) continue;
      problems_.add(file_.path() + ": no tensor of '" + printable(module) + "', which " +
                    std::string(kAdapterConfigName) + " names in modules_to_save");
    }
    problems_.throw_if_any();
  }

 private:
  void add(const TensorInfo& tensor, const std::string& why) {
    problems_.add(file_.path() + ": tensor '" + printable(tensor.name) + "': " + why);
  }

  void expect(const TensorInfo& tensor, const std::string& other) {
    if (file_.find(other) == nullptr) add(tensor, "there is no '" + printable(other) + "'");
  }

  bool is_target(std::string_view module) const {
    if (targets_.contains(kAllLinear) || targets_.contains(module)) return true;
    for (size_t dot = module.find('.'); dot != module.npos; dot = module.find('.', dot + 1)) {
      if (targets_.contains(module.substr(dot + 1))) return true;
    }
    return false;
  }

  // `a` and `b` end the names of the two factors.
  void check_factor(const TensorInfo& tensor, bool is_a, std::string_view a, std::string_view b) {
    const std::string_view name = tensor.name;
    const std::string_view path = name.substr(0, name.size() - a.size());
    const std::string other = std::string(path) + std::string(is_a ? b : a);
    expect(tensor, other);
    if (settings_.dora && is_a) expect(tensor, std::string(path) + std::string(kMagnitude));
    const bool of_experts =
        has_experts_ && (path.ends_with(".experts") || path.ends_with(".experts.base_layer"));
    if (path.size() <= kAdapterNamePrefix.size() ||
        (!of_experts && !is_target(path.substr(kAdapterNamePrefix.size())))) {
      add(tensor, "target_modules of " + std::string(kAdapterConfigName) + " has no such module");
      return;
    }
    const std::vector<int64_t>& shape = tensor.shape;
    const bool matrix = shape.size() == 2 && shape[0] > 0 && shape[1] > 0;
    const int64_t of_rank = matrix ? shape[is_a ? 0 : 1] : 0;
    // The number of experts is the model's, and so are the names of their parameters.
    const int64_t wanted =
        of_experts ? experts_rank() : rank_of(path.substr(kAdapterNamePrefix.size()));
    if (!matrix || (of_experts ? of_rank % wanted != 0 : of_rank != wanted)) {
      const std::string rank = std::to_string(wanted);
      add(tensor, "shape " + format_shape(shape) + ", but r of " + std::string(kAdapterConfigName) +
                      " makes it " + (is_a ? "[" + rank + ", inputs]" : "[outputs, " + rank + "]"));
    }
  }

  // PEFT takes a router for a parameter, with another name than its module.
  int64_t rank_of(std::string_view module) const {
    std::string name(module);
    if (routers_.contains(name.substr(name.rfind('.') + 1))) name += ".weight";
    const std::optional<double> own = ranks_.number_of(name);
    return own ? static_cast<int64_t>(*own) : settings_.rank;
  }
  // Returns a divisor of the rows of every adapter of experts.
  int64_t experts_rank() const { return settings_.ranks.empty() ? settings_.rank : 1; }

  void check_magnitude(const TensorInfo& tensor) {
    const std::string_view name = tensor.name;
    const std::string module(name.substr(0, name.size() - kMagnitude.size()));
    std::string b = module + std::string(kLookupB);
    if (file_.find(b) == nullptr) b = module + std::string(kB);
    expect(tensor, b);
    const TensorInfo* const found = file_.find(b);
    if (found == nullptr || found->shape.empty()) return;
    if (tensor.shape == std::vector<int64_t>{found->shape[0]}) return;
    add(tensor, "shape " + format_shape(tensor.shape) + ", but '" + printable(b) + "' makes it [" +
                    std::to_string(found->shape[0]) + "]");
  }

  // A parameter that is trained as a whole belongs to a module of modules_to_save or to a module
  // inside of one.
  void check_whole(const TensorInfo& tensor, std::string_view name) {
    const bool factor = name.find(".lora_A.") != name.npos || name.find(".lora_B.") != name.npos;
    if (factor && !name.ends_with(".bias")) {
      add(tensor,
          "the name has another part behind lora_A or lora_B than \"weight\" (the name of "
          "an adapter in a running program); save it with PEFT's save_pretrained");
      return;
    }
    if (name.find(".lora_") != name.npos) {
      add(tensor, "biases of adapters and magnitudes without use_dora are not supported" +
                      std::string(kMerge));
      return;
    }
    bool belongs = false;
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      for (const std::string& module : settings_.trained) {
        if (!name.substr(0, dot).ends_with(module)) continue;
        belongs = true;
        found_.insert(module);
      }
    }
    if (belongs || (settings_.tied && name == kTiedHeadName)) return;
    // The model says which biases there are.
    if (settings_.bias != AdapterBias::kNone && name.ends_with(".bias")) return;
    add(tensor, "neither part of an adapter nor of a module that modules_to_save of " +
                    std::string(kAdapterConfigName) +
                    " names; if it is an embedding that was not trained, save the adapter again "
                    "with PEFT's save_pretrained(..., save_embedding_layers=False)");
  }

  const SafetensorsFile& file_;
  const AdapterSettings& settings_;
  std::set<std::string, std::less<>> targets_;
  NumbersByPattern ranks_;
  std::set<std::string> routers_;  // the last parts of their names
  bool has_experts_ = false;
  std::set<std::string> found_;  // those of modules_to_save
  ProblemList problems_;
};

std::vector<std::string> modules_of(const SafetensorsFile& file) {
  std::vector<std::string> modules;
  for (const TensorInfo& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    const std::string_view end = name.ends_with(kLookupA) ? kLookupA : kA;
    if (!name.starts_with(kAdapterNamePrefix) || !name.ends_with(end)) continue;
    const size_t taken = kAdapterNamePrefix.size() + end.size();
    if (name.size() <= taken) continue;
    modules.emplace_back(name.substr(kAdapterNamePrefix.size(), name.size() - taken));
  }
  std::sort(modules.begin(), modules.end());
  return modules;
}

UniqueFd open_weights(const UniqueFd& directory) {
  const std::string name(kAdapterWeightsName);
  if (entry_exists(directory, name)) return open_entry(directory, name, Links::kAny);
  const std::string start = directory.path() + ": no " + name;
  if (entry_exists(directory, "adapter_model.bin")) {
    throw ConfigError(start + ": adapter_model.bin is a pickle file, which can run code and is " +
                      "never read; load the adapter with PEFT and save it with save_pretrained");
  }
  throw ConfigError(start + "; fetch it");
}

Json read_config(const UniqueFd& directory) {
  const std::string name(kAdapterConfigName);
  const std::string path = directory.path() + "/" + name;
  if (!entry_exists(directory, name)) {
    const bool model = entry_exists(directory, "config.json");
    const bool cache = is_directory_entry(directory, "snapshots");
    throw ConfigError(directory.path() + ": no " + name + ", so it is no adapter's directory" +
                      (model ? "; model.path names the directory of a model" : "") +
                      (cache ? "; name one of the directories in its snapshots/" : ""));
  }
  const std::string text =
      read_text(open_entry(directory, name, Links::kAny), kConfigLimits.max_bytes);
  Json config = parse_json(python_numbers(text), kConfigLimits, path);
  if (!config.is_object()) throw DataError(path + ": not a JSON object");
  return config;
}

}  // namespace

AdapterDirectory AdapterDirectory::open(const std::string& path) {
  const UniqueFd directory =
      open_hub_directory(path, "adapter.path names the directory of an adapter as PEFT writes it");
  const Json config = read_config(directory);
  SettingsReader reader(config, directory.path() + "/" + std::string(kAdapterConfigName));
  AdapterSettings settings = reader.read();
  SafetensorsFile file(open_weights(directory));
  std::vector<std::string> modules = modules_of(file);
  if (reader.targets_open() && settings.targets.empty()) settings.targets = modules;
  TensorCheck(file, settings).run();
  if (reader.targets_open()) {
    check_selection(reader.selection(), settings, modules, file.path());
    settings.targets = std::move(modules);
  }
  return {std::move(settings), std::move(file)};
}

AdapterDirectory::AdapterDirectory(AdapterSettings settings, SafetensorsFile file)
    : settings_(std::move(settings)), file_(std::move(file)) {
  for (const TensorInfo& tensor : file_.tensors()) {
    names_.push_back(tensor.name.substr(kAdapterNamePrefix.size()));
  }
  std::sort(names_.begin(), names_.end());
}

const TensorInfo& AdapterDirectory::tensor(std::string_view name) const {
  return file_.tensor(std::string(kAdapterNamePrefix) + std::string(name));
}

bool AdapterDirectory::has(std::string_view name) const {
  return std::binary_search(names_.begin(), names_.end(), name);
}

const std::vector<int64_t>& AdapterDirectory::shape(std::string_view name) const {
  return tensor(name).shape;
}

void AdapterDirectory::read(std::string_view name, int64_t begin, std::span<float> out) const {
  read_elements(file_, tensor(name), begin, out);
}

std::string adapter_config_text(const AdapterSettings& settings) {
  const bool all = settings.targets == std::vector<std::string>{std::string(kAllLinear)};
  const Json none = nullptr, empty = Json::object();
  const auto* const bias = std::ranges::find_if(
      kAdapterBiases, [&settings](const auto& known) { return known.second == settings.bias; });
  const auto number = [](double value) {
    const bool integer = value == std::floor(value) && value < 1e15;
    return integer ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  Json ranks = empty, alphas = empty;
  for (const auto& [pattern, rank] : settings.ranks) ranks[pattern] = static_cast<int64_t>(rank);
  for (const auto& [pattern, alpha] : settings.alphas) alphas[pattern] = number(alpha);
  const Json config = {
      {"alora_invocation_tokens", none},
      {"alpha_pattern", alphas},
      {"arrow_config", none},
      {"auto_mapping", none},
      {"base_model_name_or_path", settings.base.empty() ? none : Json(settings.base)},
      {"bias", std::string(bias->first)},
      {"corda_config", none},
      {"ensure_weight_tying", settings.tied},
      {"eva_config", none},
      {"exclude_modules", none},
      {"fan_in_fan_out", settings.transposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"kasa_config", none},
      {"layer_replication", none},
      {"layers_pattern", none},
      {"layers_to_transform", none},
      {"loftq_config", empty},
      {"lora_alpha", number(settings.alpha)},
      {"lora_bias", false},
      {"lora_dropout", settings.dropout},
      {"lora_ga_config", none},
      {"megatron_config", none},
      {"megatron_core", "megatron.core"},
      {"modules_to_save", settings.trained.empty() ? none : Json(settings.trained)},
      {"monteclora_config", none},
      {"peft_type", "LORA"},
      {"peft_version", "0.21.2"},
      {"qalora_group_size", 16},
      {"r", settings.rank},
      {"rank_pattern", ranks},
      {"revision", none},
      {"target_modules", all ? Json(kAllLinear) : Json(settings.targets)},
      {"target_parameters", settings.parameters.empty() ? none : Json(settings.parameters)},
      {"task_type", "CAUSAL_LM"},
      {"trainable_token_indices", none},
      {"use_bdlora", none},
      {"use_dora", settings.dora},
      {"use_qalora", false},
      {"use_rslora", settings.rslora},
      {"velora_config", none},
  };
  return config.dump(2, ' ', true);
}

}  // namespace longshore
