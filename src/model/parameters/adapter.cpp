#include "model/parameters/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/name_pattern.h"
#include "base/texts.h"
#include "model/families/families.h"
#include "model/parameters/mixer_parameters.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

// Ends the name of a magnitude, which has no ".weight" in PEFT's files.
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
constexpr std::array kMlpModules = {Module::kGate, Module::kUp, Module::kGateUp, Module::kDown};
constexpr std::array kExpertModules = {Module::kExpertsGateUp, Module::kExpertsDown};
constexpr std::array kSharedModules = {Module::kSharedGate, Module::kSharedUp, Module::kSharedDown};
// The matrices of the inputs of layers.
constexpr std::array kInputModules = {Module::kInputProjection, Module::kInputGate,
                                      Module::kInputOut};
// The embedding and the head, which are targets only where they are named.
constexpr std::array kTableModules = {Module::kTokens, Module::kHead};
constexpr std::string_view kWeight = ".weight", kBias = ".bias";
constexpr std::string_view kRegex = "re:";  // begins a target that is a regular expression
// These end the names of an embedding's adapter.
constexpr std::string_view kLookupA = ".lora_embedding_A", kLookupB = ".lora_embedding_B";

bool experts_are_linear(const ArchSpec& arch) {
  return expert_adapters(arch.family) == ExpertAdapters::kLinear;
}

bool experts_adaptable(const ArchSpec& arch) {
  return arch.moe.experts > 0 && expert_adapters(arch.family) != ExpertAdapters::kNone;
}

bool is_one_of(std::span<const Module> modules, Module module) {
  return std::ranges::find(modules, module) != modules.end();
}

// Experts and the router are parameters of their modules in transformers, not modules themselves.
bool is_sparse_part(Module module) {
  return is_one_of(kExpertModules, module) || module == Module::kRouter;
}

// Returns whether a sparse layer computes the module's product.
bool is_in_sparse_layer(Module module) {
  return is_sparse_part(module) || module == Module::kSharedSwitch;
}

// Returns whether "all-linear" includes the module.
bool is_linear(const ArchSpec& arch, Module module) {
  return is_mixer_matrix(module) || is_one_of(kMlpModules, module) ||
         is_one_of(kInputModules, module) ||
         (experts_are_linear(arch) && is_in_sparse_layer(module));
}

bool can_be_adapted(const ArchSpec& arch, Module module) {
  return is_linear(arch, module) || is_one_of(kTableModules, module) ||
         (experts_adaptable(arch) && is_in_sparse_layer(module));
}

bool ends_with_part(std::string_view name, std::string_view end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) &&
                         name[name.size() - end.size() - 1] == '.');
}

// Returns the name of a module, which is given without the prefix of the model's files.
std::string name_in_transformers(const ArchSpec& arch, Module module, const std::string& name) {
  if (module == Module::kHead) return name;  // which is beside the body
  return std::string(name_table(arch.family).published_body()) + name;
}

// One target of an AdapterChoice against one module of a layer.
class Target {
 public:
  // Throws ConfigError, whose message begins with `where`, for a regular expression that is not
  // read.
  Target(const ArchSpec& arch, const std::string& text, const std::string& where)
      : arch_(arch), prefixes_(name_table(arch.family).prefixes), text_(text) {
    if (!text.starts_with(kRegex)) return;
    try {
      pattern_.emplace(text.substr(kRegex.size()), NamePattern::Scope::kWhole);
    } catch (const ConfigError& error) {
      throw ConfigError(where + ": \"" + printable(text) + "\": " + error.what());
    }
  }

  // `name` lacks the prefix of the model's files.
  bool matches(Module module, const std::string& name) const {
    if (text_ == "attention") return is_mixer_matrix(module);
    if (text_ == "mlp") {
      return is_one_of(kMlpModules, module) || is_one_of(kExpertModules, module);
    }
    if (text_ == "all-linear") return is_linear(arch_, module);
    if (pattern_) return pattern_->matches(name_in_transformers(arch_, module, name));
    return std::ranges::any_of(prefixes_,
                               [&](const NameTable::Prefix& prefix) {
                                 const std::string whole = std::string(prefix.body) + name;
                                 if (ends_with_part(whole, text_) || glob_matches(text_, whole))
                                   return true;
                                 // PEFT's target_parameters name the router's weight.
                                 return module == Module::kRouter &&
                                        ends_with_part(whole + std::string(kWeight), text_);
                               }) ||
           is_older_name(module);
  }
  // Returns whether the target means matrices that a layer of experts has instead of an MLP.
  bool means_mlp() const { return text_ == "mlp" || text_ == "all-linear"; }

 private:
  // Adapters that were made with transformers 4 name the matrices of single experts.
  bool is_older_name(Module module) const {
    if (!experts_are_linear(arch_)) return false;
    constexpr std::array<std::string_view, 4> kGateUp = {"gate_proj", "up_proj", "w1", "w3"};
    if (module == Module::kExpertsDown) return text_ == "w2";
    return module == Module::kExpertsGateUp && std::ranges::find(kGateUp, text_) != kGateUp.end();
  }

  const ArchSpec& arch_;
  const std::vector<NameTable::Prefix>& prefixes_;
  const std::string& text_;
  std::optional<NamePattern> pattern_;
};

// The weights of the model that have two dimensions or more, by layer.
struct Candidate {
  int64_t layer = kNoLayer;
  Module module = Module::kTokens;
  std::string name;  // of the module, without the prefix of the model's files
};

std::vector<Candidate> candidates(const ArchSpec& family) {
  ArchSpec arch = family;
  const bool sparse = experts_adaptable(arch);
  if (sparse) arch.moe.fused = true;  // the names of transformers
  std::vector<Candidate> list;
  const auto add = [&](int64_t layer, const std::vector<ModuleParameter>& parameters) {
    for (const ModuleParameter& parameter : parameters) {
      if (parameter.role != ParameterRole::kWeight || parameter.spec.shape.size() < 2) continue;
      if (sparse && is_one_of(kMlpModules, parameter.module)) continue;
      if (sparse && is_one_of(kSharedModules, parameter.module)) continue;
      list.push_back({layer, parameter.module, module_of(parameter.spec.name)});
    }
  };
  add(kNoLayer, embedding_parameters(arch, {}));
  add(kNoLayer, input_table_parameters(arch, {}));
  add(kNoLayer, input_parameters(arch, {}));
  add(kNoLayer, head_parameters(arch, {}, /*tied=*/false));
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    add(layer, block_parameters(arch, {}, layer));
  }
  return list;
}

// LeftOut says what a choice leaves out of its targets.
class LeftOut {
 public:
  // Throws ConfigError for a layer that the model does not have.
  LeftOut(const ArchSpec& arch, const AdapterChoice& choice)
      : layers_(choice.layers.begin(), choice.layers.end()) {
    for (const std::string& text : choice.excluded) {
      names_.push_back({text, Target(arch, text, "adapter.exclude")});
    }
    for (const int64_t layer : layers_) {
      if (layer < arch.layer_count()) continue;
      throw ConfigError("adapter.layers: " + std::to_string(layer) + ", but " + arch.origin +
                        " has " + std::to_string(arch.layer_count()) +
                        " layers, which are counted from 0");
    }
  }

  // `one` is a target.
  bool has(const Candidate& one) {
    if (!layers_.empty() && !layers_.contains(one.layer)) return true;
    bool excluded = false;
    for (Name& name : names_) {
      if (!name.target.matches(one.module, one.name)) continue;
      name.used = excluded = true;
    }
    return excluded;
  }
  // Throws ConfigError for a name that excluded no target.
  void check_used() const {
    for (const Name& name : names_) {
      if (name.used) continue;
      throw ConfigError("adapter.exclude: \"" + printable(name.text) +
                        "\" is none of the targets; remove it");
    }
  }

 private:
  struct Name {
    std::string text;
    Target target;
    bool used = false;
  };
  std::vector<Name> names_;
  std::set<int64_t> layers_;
};

// Returns "down_proj, gate_proj, k_proj": the last parts of the names that can be targets.
std::string known_targets(const ArchSpec& arch, const std::vector<Candidate>& list) {
  std::set<std::string> names;
  for (const Candidate& one : list) {
    if (!can_be_adapted(arch, one.module)) continue;
    names.insert(one.name.substr(one.name.rfind('.') + 1));
  }
  return joined(names, ", ");
}

// PEFT nests the adapters of a layer's experts and refuses dropout and DoRA for parameters. The
// switch of the expert for all tokens is computed beside them.
void check_sparse_parts(const ArchSpec& arch, const AdapterSpec& adapter,
                        const std::string& where) {
  const bool any = std::ranges::any_of(adapter.targets, [](const auto& target) {
    const auto& [layer, module] = target.first;
    return is_in_sparse_layer(module);
  });
  if (any && (adapter.magnitudes || adapter.dropout > 0.0)) {
    throw ConfigError(where + ": adapters of experts and routers have neither DoRA nor dropout, " +
                      "as in PEFT; use \"attention\", or LoRA without dropout");
  }
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    if (adapter.adapts(layer, Module::kExpertsGateUp) !=
        adapter.adapts(layer, Module::kExpertsDown)) {
      throw ConfigError(where + ": name " + (arch.gated ? "gate_up_proj" : "up_proj") +
                        " and down_proj of experts together");
    }
  }
}

void check_tables(const ArchSpec& arch, const AdapterSpec& adapter, const std::string& where) {
  if (arch.embedding_norm && adapter.adapts(kNoLayer, Module::kTokens)) {
    throw ConfigError(where + ": " + arch.family + " norms the embedding's rows. PEFT adds an " +
                      "adapter behind that norm, but its merge before it, so the embedding " +
                      "cannot have one; name other targets");
  }
}

// Throws for words that include the expert for all tokens where PEFT adapts it.
void check_shared_expert(const ArchSpec& arch, const std::string& text, const std::string& where) {
  const bool adapted = experts_adaptable(arch) && !experts_are_linear(arch);
  if (text != "all-linear" || !adapted || arch.moe.shared_width == 0) return;
  throw ConfigError(where + ": \"all-linear\" includes the expert for all tokens, which cannot " +
                    "have an adapter in " + arch.family + "; use \"attention\" and \"mlp\"");
}

// The shape of a stacked B: [experts, outputs, rank]. PEFT's index of an element is (output * rank
// + k) * experts + expert.
template <typename Use>
void for_stacked_b(const ParamSpec& parameter, const Use& use) {
  const auto experts = static_cast<size_t>(parameter.shape.at(0));
  const size_t matrix = static_cast<size_t>(parameter.elements()) / experts;
  for (size_t expert = 0; expert < experts; ++expert) {
    for (size_t i = 0; i < matrix; ++i) use(expert * matrix + i, i * experts + expert);
  }
}

bool is_b(const ParamSpec& parameter) {
  return parameter.adapter && parameter.name.ends_with(".lora_B.weight");
}

bool is_lookup_a(const ParamSpec& parameter) {
  return parameter.adapter && parameter.name.ends_with(kLookupA);
}

// Calls use(place, place in PEFT's order) for every element of a parameter that PEFT reorders.
template <typename Use>
void for_reordered(const ParamSpec& parameter, const Use& use) {
  if (!is_lookup_a(parameter)) return for_stacked_b(parameter, use);
  const auto tokens = static_cast<size_t>(parameter.shape.at(0));
  const auto rank = static_cast<size_t>(parameter.shape.at(1));
  for (size_t token = 0; token < tokens; ++token) {
    for (size_t k = 0; k < rank; ++k) use(token * rank + k, k * tokens + token);
  }
}

// Returns the name that PEFT's patterns match: that of the module in transformers, or of the
// parameter that an expert's or router's adapter belongs to there.
std::string name_for_patterns(const ArchSpec& arch, const Candidate& one) {
  const std::string whole = name_in_transformers(arch, one.module, one.name);
  return one.module == Module::kRouter ? whole + std::string(kWeight) : whole;
}

// Returns the numbers of the targets that the patterns of a table match.
std::vector<std::optional<double>> matched_numbers(const std::vector<PatternNumber>& patterns,
                                                   const std::vector<std::string>& names,
                                                   bool spare, const std::string& table) {
  const auto read = [&] {
    try {
      return NumbersByPattern(patterns);
    } catch (const ConfigError& error) {
      throw ConfigError(table + ": " + error.what());
    }
  };
  const NumbersByPattern numbers = read();
  const std::optional<std::string> unused = spare ? std::nullopt : numbers.pattern_without(names);
  if (unused) {
    throw ConfigError(table + ": \"" + printable(*unused) +
                      "\" matches no module that has an adapter; a pattern is a regular expression "
                      "for a module's name or for what follows a dot in it, such as \"q_proj\" or "
                      "\"layers.0.self_attn.q_proj\"");
  }
  std::vector<std::optional<double>> found;
  for (const std::string& name : names) found.push_back(numbers.number_of(name));
  return found;
}

// Sets rank and scaling of each target.
void set_sizes(const ArchSpec& arch, const AdapterChoice& choice,
               const std::vector<const Candidate*>& chosen, AdapterSpec& adapter) {
  std::vector<std::string> names;
  for (const Candidate* one : chosen) names.push_back(name_for_patterns(arch, *one));
  const bool spare = choice.spare_patterns;
  const auto ranks = matched_numbers(choice.ranks, names, spare, "adapter.rank_pattern");
  const auto alphas = matched_numbers(choice.alphas, names, spare, "adapter.alpha_pattern");
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Candidate& one = *chosen[i];
    const bool doubled = choice.gate_up_doubled && one.module == Module::kExpertsGateUp;
    const double usual = doubled ? 2.0 : 1.0;
    const double rank = ranks[i].value_or(usual * static_cast<double>(choice.rank));
    const double alpha = alphas[i].value_or(usual * choice.alpha);
    adapter.targets[{one.layer, one.module}] = {
        .rank = static_cast<int64_t>(rank),
        .alpha = alpha,
        .scaling = alpha / (choice.rslora ? std::sqrt(rank) : rank)};
  }
}

}  // namespace

std::string module_of(std::string_view parameter) {
  for (const std::string_view end : {kWeight, kBias}) {
    if (parameter.ends_with(end)) parameter.remove_suffix(end.size());
  }
  return std::string(parameter);
}

AdapterNames adapter_names(const std::string& module, bool lookup) {
  const std::string magnitude = module + std::string(kMagnitude);
  if (lookup) {
    return {module + std::string(kLookupA), module + std::string(kLookupB), magnitude};
  }
  return {module + ".lora_A.weight", module + ".lora_B.weight", magnitude};
}

std::vector<int64_t> peft_shape(const ParamSpec& parameter) {
  if (is_lookup_a(parameter)) return {parameter.shape.at(1), parameter.shape.at(0)};
  if (!parameter.adapter || !parameter.stacked) return parameter.shape;
  const int64_t experts = parameter.shape.at(0), rows = parameter.shape.at(1);
  const int64_t columns = parameter.shape.at(2);
  if (is_b(parameter)) return {rows, columns * experts};
  return {experts * rows, columns};
}

bool peft_reorders(const ParamSpec& parameter) {
  return (parameter.stacked && is_b(parameter)) || is_lookup_a(parameter);
}

std::vector<float> from_peft(const ParamSpec& parameter, std::span<const float> values) {
  std::vector<float> own(values.size());
  for_reordered(parameter, [&](size_t mine, size_t peft) { own[mine] = values[peft]; });
  return own;
}

std::vector<float> to_peft(const ParamSpec& parameter, std::span<const float> values) {
  std::vector<float> peft(values.size());
  for_reordered(parameter, [&](size_t mine, size_t place) { peft[place] = values[mine]; });
  return peft;
}

bool doubles_gate_up(const ArchSpec& arch) {
  return experts_are_linear(arch);
}

std::string weight_of_magnitude(std::string_view parameter) {
  if (!parameter.ends_with(kMagnitude)) return {};
  parameter.remove_suffix(kMagnitude.size());
  return std::string(parameter) + ".weight";
}

AdapterSpec choose_adapters(const ArchSpec& arch, const AdapterChoice& choice,
                            const std::string& where) {
  const std::vector<Candidate> list = candidates(arch);
  AdapterSpec adapter{.magnitudes = choice.dora, .dropout = choice.dropout, .targets = {}};
  std::vector<const Candidate*> chosen;
  LeftOut left_out(arch, choice);
  const bool sparse = std::ranges::any_of(arch.layers, &LayerSpec::sparse);
  for (const std::string& text : choice.targets) {
    const Target target(arch, text, where);
    if (sparse && !experts_adaptable(arch) && target.means_mlp()) {
      throw ConfigError(where + ": \"" + text +
                        "\" includes experts, which cannot have adapters in " + arch.family +
                        "; use \"attention\"");
    }
    check_shared_expert(arch, text, where);
    bool meant = false;
    for (const Candidate& one : list) {
      if (!target.matches(one.module, one.name)) continue;
      meant = true;
      if (left_out.has(one)) continue;
      if (!can_be_adapted(arch, one.module)) {
        throw ConfigError(where + ": \"" + printable(text) + "\" is " + one.name +
                          ", which cannot have an adapter; possible are " +
                          known_targets(arch, list));
      }
      if (adapter.targets.try_emplace({one.layer, one.module}).second) chosen.push_back(&one);
    }
    if (!meant) {
      throw ConfigError(where + ": \"" + printable(text) + "\" is no module of " + arch.origin +
                        "; possible are attention, mlp, all-linear, " + known_targets(arch, list));
    }
  }
  if (chosen.empty() && !choice.targets.empty()) {
    throw ConfigError(where +
                      ": adapter.exclude and adapter.layers leave no module of the targets");
  }
  left_out.check_used();
  set_sizes(arch, choice, chosen, adapter);
  check_sparse_parts(arch, adapter, where);
  check_tables(arch, adapter, where);
  return adapter;
}

std::set<std::string> adapted_modules(const ModelSpec& model) {
  std::set<std::string> modules;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.adapter) continue;
      modules.insert(parameter.name.substr(0, parameter.name.find(".lora_")));
    }
  }
  return modules;
}

void freeze_base(ModelSpec& model, std::span<const std::string> trained, const std::string& where,
                 AdapterBias bias) {
  const std::set<std::string> adapted = adapted_modules(model);
  std::set<std::string> unmatched(trained.begin(), trained.end());
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) {
      if (parameter.adapter) continue;
      const std::string module = module_of(parameter.name);
      const bool buffer = parameter.frozen;  // which no run trains
      const bool is_trained_bias = parameter.name.ends_with(kBias) &&
                                   (bias == AdapterBias::kAll ||
                                    (bias == AdapterBias::kAdapted && adapted.contains(module)));
      parameter.frozen = !is_trained_bias || buffer;
      for (const std::string& name : trained) {
        if (!module.ends_with(name) && !glob_matches(name, module)) continue;
        parameter.frozen = buffer;
        unmatched.erase(name);
      }
    }
  }
  if (!unmatched.empty()) {
    throw ConfigError(where + ": \"" + printable(*unmatched.begin()) +
                      "\" is no module of the model" +
                      (model.units.back().tied.empty() ? "" : ", whose head is its embedding"));
  }
}

const ParamSpec* trained_tied_table(const ModelSpec& model) {
  for (const ParamRef ref : model.units.back().tied) {
    if (!model.parameter(ref).frozen) return &model.parameter(ref);
  }
  return nullptr;
}

void check_tied_targets(const ArchSpec& arch, const ModelSpec& model, const std::string& where) {
  if (model.units.back().tied.empty()) return;
  for (const Module module : kTableModules) {
    if (!arch.adapter.adapts(kNoLayer, module)) continue;
    throw ConfigError(where + ": the embedding of " + arch.origin +
                      " is also its head (tie_word_embeddings); an adapter on one of the two has "
                      "no merged model, because PEFT's merge changes both; name other targets");
  }
}

std::vector<std::string> target_names(const ArchSpec& arch) {
  const NameTable& names = name_table(arch.family);
  std::set<std::string> last_parts, whole;
  std::set<std::string> others;  // the last parts of modules without an adapter
  for (const Candidate& one : candidates(arch)) {
    const std::string last = one.name.substr(one.name.rfind('.') + 1);
    if (is_sparse_part(one.module)) continue;
    if (arch.adapter.adapts(one.layer, one.module)) {
      last_parts.insert(last);
      whole.insert(name_for_patterns(arch, one));
    } else {
      others.insert(last);
    }
  }
  // The other towers of a wrapper may have modules of any name.
  const bool plain = names.other_towers.empty() &&
                     std::ranges::none_of(last_parts, [&others](const std::string& name) {
                       return others.contains(name);
                     });
  const std::set<std::string>& list = plain ? last_parts : whole;
  return {list.begin(), list.end()};
}

std::vector<std::string> target_parameters(const ArchSpec& arch) {
  const std::string_view prefix = name_table(arch.family).published_body();
  std::set<std::string> names;
  const std::vector<Candidate> list = candidates(arch);
  for (const Candidate& one : list) {
    if (!is_sparse_part(one.module) || !arch.adapter.adapts(one.layer, one.module)) continue;
    const bool everywhere = std::ranges::all_of(list, [&](const Candidate& other) {
      return other.module != one.module || arch.adapter.adapts(other.layer, other.module);
    });
    const bool router = one.module == Module::kRouter;
    std::string name =
        everywhere ? one.name.substr(one.name.rfind('.') + 1) : std::string(prefix) + one.name;
    names.insert(router ? name + std::string(kWeight) : name);
  }
  return {names.begin(), names.end()};
}

std::vector<PatternNumber> number_patterns(
    const ArchSpec& arch, double usual,
    const std::function<double(const AdapterSpec::Size&)>& number_of) {
  struct Named {
    std::string whole;
    double number = 0.0;
  };
  std::map<std::string, std::vector<Named>> by_last_part;
  for (const Candidate& one : candidates(arch)) {
    if (!arch.adapter.adapts(one.layer, one.module)) continue;
    const std::string whole = name_for_patterns(arch, one);
    const std::string last = one.name.substr(one.name.rfind('.') + 1);
    by_last_part[one.module == Module::kRouter ? last + std::string(kWeight) : last].push_back(
        {whole, number_of(arch.adapter.size_of(one.layer, one.module))});
  }
  std::vector<PatternNumber> patterns;
  for (const auto& [part, all] : by_last_part) {
    const double first = all.front().number;
    const auto is_same = [first](const Named& one) { return one.number == first; };
    if (std::ranges::all_of(all, is_same)) {
      if (first != usual) patterns.push_back({part, first});
      continue;
    }
    for (const Named& one : all) {
      if (one.number != usual) patterns.push_back({one.whole, one.number});
    }
  }
  std::ranges::sort(patterns, {}, &PatternNumber::pattern);
  return patterns;
}

std::vector<std::string> trained_modules(const ModelSpec& model) {
  std::set<std::string> trained, frozen;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.adapter) {
        (parameter.frozen ? frozen : trained).insert(module_of(parameter.name));
      }
    }
  }
  std::vector<std::string> names;
  std::ranges::set_difference(trained, frozen, std::back_inserter(names));
  return names;
}

ModelSpec merged_spec(const ArchSpec& arch, const ModelSpec& model) {
  const std::map<std::string, AdaptedPart> adapted = adapted_matrices(arch, model);
  ModelSpec merged = model;
  for (UnitSpec& unit : merged.units) {
    std::erase_if(unit.parameters, &ParamSpec::adapter);
    for (ParamSpec& parameter : unit.parameters) {
      if (adapted.contains(parameter.name)) parameter.frozen = false;
    }
  }
  return merged;
}

}  // namespace longshore
