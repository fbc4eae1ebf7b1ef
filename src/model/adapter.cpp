#include "model/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/errors.h"
#include "base/texts.h"
#include "model/families.h"
#include "model/model_spec.h"

namespace longshore {
namespace {

// Ends the name of a magnitude, which has no ".weight" in PEFT's files.
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
// The matrices of a layer's mixer, whichever it is.
constexpr std::array kAttentionModules = {
    Module::kQuery,      Module::kKey,          Module::kValue,          Module::kQkv,
    Module::kOutput,     Module::kDeltaQkv,     Module::kDeltaGate,      Module::kDeltaBeta,
    Module::kDeltaDecay, Module::kDeltaQkvGate, Module::kDeltaBetaDecay, Module::kDeltaOutput,
    Module::kQueryDown,  Module::kQueryUp,      Module::kLatentDown,     Module::kLatentUp};
constexpr std::array kMlpModules = {Module::kGate, Module::kUp, Module::kGateUp, Module::kDown};

bool is_one_of(std::span<const Module> modules, Module module) {
  return std::ranges::find(modules, module) != modules.end();
}

bool can_be_adapted(Module module) {
  return is_one_of(kAttentionModules, module) || is_one_of(kMlpModules, module);
}

bool ends_with_part(std::string_view name, std::string_view end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) &&
                         name[name.size() - end.size() - 1] == '.');
}

// One target of an AdapterChoice against one module of a layer.
class Target {
 public:
  Target(const ArchSpec& arch, const std::string& text)
      : prefixes_(name_table(arch.family).prefixes), text_(text) {}

  // `name` lacks the prefix of the model's files.
  bool matches(Module module, const std::string& name) const {
    if (text_ == "attention") return is_one_of(kAttentionModules, module);
    if (text_ == "mlp") return is_one_of(kMlpModules, module);
    if (text_ == "all-linear") return can_be_adapted(module);
    return std::ranges::any_of(prefixes_, [&](const NameTable::Prefix& prefix) {
      const std::string whole = std::string(prefix.body) + name;
      return ends_with_part(whole, text_) || glob_matches(text_, whole);
    });
  }
  // Returns whether the target means matrices that a layer of experts has instead of an MLP.
  bool means_mlp() const { return text_ == "mlp" || text_ == "all-linear"; }

 private:
  const std::vector<NameTable::Prefix>& prefixes_;
  const std::string& text_;
};

// The weights of the model that have two dimensions or more, by layer. Layer -1 has the embedding
// and the head.
struct Candidate {
  int64_t layer = -1;
  Module module = Module::kTokens;
  std::string name;  // of the module, without the prefix of the model's files
};

std::vector<Candidate> candidates(const ArchSpec& arch) {
  std::vector<Candidate> list;
  const auto add = [&list](int64_t layer, const std::vector<ModuleParameter>& parameters) {
    for (const ModuleParameter& parameter : parameters) {
      if (parameter.role != ParameterRole::kWeight || parameter.spec.shape.size() < 2) continue;
      list.push_back({layer, parameter.module, module_of(parameter.spec.name)});
    }
  };
  add(-1, embedding_parameters(arch, {}));
  add(-1, head_parameters(arch, {}, /*tied=*/false));
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    add(layer, block_parameters(arch, {}, layer));
  }
  return list;
}

// Returns "down_proj, gate_proj, k_proj": the last parts of the names that can be targets.
std::string known_targets(const std::vector<Candidate>& list) {
  std::set<std::string> names;
  for (const Candidate& one : list) {
    if (!can_be_adapted(one.module)) continue;
    names.insert(one.name.substr(one.name.rfind('.') + 1));
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::string module_of(std::string_view parameter) {
  for (const std::string_view end : {".weight", ".bias"}) {
    if (parameter.ends_with(end)) parameter.remove_suffix(end.size());
  }
  return std::string(parameter);
}

std::optional<AdapterNames> adapter_names(std::string_view parameter) {
  if (!parameter.ends_with(".weight")) return std::nullopt;
  const std::string module = module_of(parameter);
  return AdapterNames{module + ".lora_A.weight", module + ".lora_B.weight",
                      module + std::string(kMagnitude)};
}

std::string weight_of_magnitude(std::string_view parameter) {
  if (!parameter.ends_with(kMagnitude)) return {};
  parameter.remove_suffix(kMagnitude.size());
  return std::string(parameter) + ".weight";
}

AdapterSpec choose_adapters(const ArchSpec& arch, const AdapterChoice& choice,
                            const std::string& where) {
  const std::vector<Candidate> list = candidates(arch);
  AdapterSpec adapter{
      .rank = choice.rank,
      .scaling = choice.alpha / (choice.rslora ? std::sqrt(static_cast<double>(choice.rank))
                                               : static_cast<double>(choice.rank)),
      .magnitudes = choice.dora,
      .dropout = choice.dropout,
      .targets = {}};
  const bool sparse = std::ranges::any_of(arch.layers, &LayerSpec::sparse);
  for (const std::string& text : choice.targets) {
    const Target target(arch, text);
    if (sparse && target.means_mlp()) {
      throw ConfigError(where + ": \"" + text +
                        "\" includes experts, which cannot have adapters; use \"attention\"");
    }
    bool found = false;
    for (const Candidate& one : list) {
      if (!target.matches(one.module, one.name)) continue;
      if (!can_be_adapted(one.module)) {
        throw ConfigError(where + ": \"" + printable(text) + "\" is " + one.name +
                          ", which cannot have an adapter; possible are " + known_targets(list));
      }
      adapter.targets.insert({one.layer, one.module});
      found = true;
    }
    if (!found) {
      throw ConfigError(where + ": \"" + printable(text) + "\" is no module of " + arch.origin +
                        "; possible are attention, mlp, all-linear, " + known_targets(list));
    }
  }
  return adapter;
}

void freeze_base(ModelSpec& model, std::span<const std::string> trained, const std::string& where) {
  std::set<std::string> unmatched(trained.begin(), trained.end());
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) {
      if (parameter.adapter) continue;
      const std::string module = module_of(parameter.name);
      parameter.frozen = true;
      for (const std::string& name : trained) {
        if (!module.ends_with(name) && !glob_matches(name, module)) continue;
        parameter.frozen = false;
        unmatched.erase(name);
      }
    }
  }
  if (!unmatched.empty()) {
    throw ConfigError(where + ": \"" + printable(*unmatched.begin()) +
                      "\" is no module of the model");
  }
  for (const ParamRef ref : model.units.back().tied) {
    if (model.parameter(ref).frozen) continue;
    throw ConfigError(where + ": " + model.parameter(ref).name +
                      " is tied to the head; a tied matrix cannot be trained beside adapters");
  }
}

std::vector<std::string> target_names(const ArchSpec& arch) {
  const std::string_view prefix = name_table(arch.family).prefixes.front().body;
  std::set<std::string> last_parts, whole;
  std::set<std::string> others;  // the last parts of modules without an adapter
  for (const Candidate& one : candidates(arch)) {
    const std::string last = one.name.substr(one.name.rfind('.') + 1);
    if (one.layer >= 0 && arch.adapter.adapts(one.layer, one.module)) {
      last_parts.insert(last);
      whole.insert(std::string(prefix) + one.name);
    } else {
      others.insert(last);
    }
  }
  const bool plain = std::ranges::none_of(
      last_parts, [&others](const std::string& name) { return others.contains(name); });
  const std::set<std::string>& names = plain ? last_parts : whole;
  return {names.begin(), names.end()};
}

std::vector<std::string> trained_modules(const ModelSpec& model) {
  std::set<std::string> names;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.frozen && !parameter.adapter) names.insert(module_of(parameter.name));
    }
  }
  return {names.begin(), names.end()};
}

ModelSpec merged_spec(const ModelSpec& model) {
  ModelSpec merged = model;
  for (UnitSpec& unit : merged.units) {
    std::set<std::string> adapted;
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.adapter) adapted.insert(parameter.name);
    }
    std::erase_if(unit.parameters, &ParamSpec::adapter);
    for (ParamSpec& parameter : unit.parameters) {
      const std::optional<AdapterNames> names = adapter_names(parameter.name);
      if (names && adapted.contains(names->a)) parameter.frozen = false;
    }
  }
  return merged;
}

}  // namespace longshore
