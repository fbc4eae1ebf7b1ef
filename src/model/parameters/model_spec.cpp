#include "model/parameters/model_spec.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "base/errors.h"
#include "base/texts.h"
#include "model/parameters/adapter.h"
#include "model/parameters/block_carry.h"

namespace longshore {
namespace {

// This is more than any machine holds and keeps products of sizes within 64 bits.
constexpr int64_t kMostParameters = int64_t{1} << 46;

// The units that make the inputs of layers.
constexpr const char* kInputTableUnit = "input_table";
constexpr const char* kInputsUnit = "layer_inputs";

std::string shape_text(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < shape.size(); ++i) text << (i > 0 ? ", " : "") << shape[i];
  text << "]";
  return text.str();
}

// Returns the prefix under which the files keep the embedding. If no prefix matches it returns the
// first one, and the embedding is then reported as missing.
NameTable::Prefix find_prefix(const ArchSpec& arch, std::span<const FileTensor> files) {
  const NameTable& names = name_table(arch.family);
  for (const NameTable::Prefix& prefix : names.prefixes) {
    const std::string wanted = std::string(prefix.body) +
                               std::string(names.modules[static_cast<size_t>(Module::kTokens)]) +
                               ".weight";
    const bool found = std::any_of(files.begin(), files.end(),
                                   [&](const FileTensor& file) { return file.name == wanted; });
    if (found) return prefix;
  }
  return names.prefixes.front();
}

std::string head_name(const ArchSpec& arch, NameTable::Prefix prefix) {
  return std::string(prefix.head) +
         std::string(name_table(arch.family).modules[static_cast<size_t>(Module::kHead)]) +
         ".weight";
}

bool decide_tied(const ArchSpec& arch, NameTable::Prefix prefix,
                 std::span<const FileTensor> files) {
  const std::string head = head_name(arch, prefix);
  const bool in_files = std::any_of(files.begin(), files.end(),
                                    [&](const FileTensor& file) { return file.name == head; });
  return (arch.tied_by_config || arch.tied_by_files) && !in_files;
}

UnitSpec make_unit(size_t id, std::string name, std::vector<ModuleParameter> parameters,
                   std::vector<CarryTensorSpec> carry_out) {
  UnitSpec unit;
  unit.id = UnitId(static_cast<int32_t>(id));
  unit.name = std::move(name);
  for (ModuleParameter& parameter : parameters) {
    unit.parameters.push_back(std::move(parameter.spec));
  }
  unit.carry_out = std::move(carry_out);
  return unit;
}

void check_size(const ModelSpec& model, const ArchSpec& arch) {
  int64_t sum = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      int64_t elements = 1;
      for (int64_t dimension : parameter.shape) {
        elements = checked_multiply(elements, dimension).value_or(kMostParameters);
      }
      sum = checked_add(sum, elements).value_or(kMostParameters);
      if (sum >= kMostParameters) {
        throw ConfigError(arch.origin + ": the sizes give more than 2^46 parameters");
      }
    }
  }
}

// A size that config.json gives or leaves to its default, and that which a matrix's shape implies.
struct ImpliedSize {
  const char* key = nullptr;
  int64_t used = 0, implied = 0;
};

// Returns the size that decides about the matrix's shape, if that is a single one.
std::optional<ImpliedSize> implied_size(const ArchSpec& arch, Module module,
                                        const std::vector<int64_t>& shape) {
  if (shape.size() != 2 || arch.transposed_weights) return std::nullopt;
  const int64_t halves = arch.output_gate && !arch.own_gate_matrix ? 2 : 1;
  switch (module) {
    case Module::kQuery:
      return ImpliedSize{"head_dim", arch.head_dim, shape[0] / arch.heads / halves};
    case Module::kKey:
    case Module::kValue:
      return ImpliedSize{"num_key_value_heads", arch.kv_heads, shape[0] / arch.head_dim};
    case Module::kGate:
    case Module::kUp:
      return ImpliedSize{"intermediate_size", arch.intermediate, shape[0]};
    case Module::kGateUp:
      return ImpliedSize{"intermediate_size", arch.intermediate, shape[0] / 2};
    case Module::kDown:
      return ImpliedSize{"intermediate_size", arch.intermediate, shape[1]};
    case Module::kExpertGate:
    case Module::kExpertUp:
      return ImpliedSize{"moe_intermediate_size", arch.moe.width, shape[0]};
    case Module::kExpertDown:
      return ImpliedSize{"moe_intermediate_size", arch.moe.width, shape[1]};
    default:
      return std::nullopt;
  }
}

// Returns one line for each size of config.json that contradicts the files, by the first matrix
// that shows it: a key that is absent is otherwise hard to find behind the shapes.
std::vector<std::string> contradicted_sizes(
    const ArchSpec& arch, NameTable::Prefix prefix,
    const std::map<std::string_view, const FileTensor*>& files) {
  std::map<std::string, std::string> lines;  // by key
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const ArchSpec own = arch.of_layer(arch.layers[static_cast<size_t>(layer)]);
    for (const ModuleParameter& parameter : block_parameters(arch, prefix, layer)) {
      if (parameter.role != ParameterRole::kWeight) continue;
      const auto found = files.find(parameter.spec.name);
      if (found == files.end() || found->second->shape == parameter.spec.shape) continue;
      // A transposed matrix says nothing of sizes, and its shape is named anyway.
      const std::vector<int64_t>& shape = found->second->shape;
      if (std::equal(shape.rbegin(), shape.rend(), parameter.spec.shape.begin(),
                     parameter.spec.shape.end())) {
        continue;
      }
      const auto size = implied_size(own, parameter.module, shape);
      if (!size || size->implied == size->used || size->implied < 1) continue;
      const bool absent = arch.absent_keys.contains(size->key);
      lines.emplace(size->key, std::string("'") + size->key + "' is " + (absent ? "absent, " : "") +
                                   std::to_string(size->used) + (absent ? " by default; " : "; ") +
                                   "the shape " + shape_text(shape) + " of '" +
                                   parameter.spec.name + "' implies " +
                                   std::to_string(size->implied));
    }
  }
  // Keys and values have as many rows as the size of a head says.
  if (lines.contains("head_dim")) lines.erase("num_key_value_heads");
  std::vector<std::string> list;
  for (const auto& [key, line] : lines) list.push_back(line);
  return list;
}

// Throws if the embedding has none of the family's prefixes but another one.
void check_prefix(const ArchSpec& arch, NameTable::Prefix prefix,
                  std::span<const FileTensor> files) {
  const NameTable& names = name_table(arch.family);
  const std::string tokens =
      std::string(names.modules[static_cast<size_t>(Module::kTokens)]) + ".weight";
  const auto is_named = [&](const FileTensor& file) {
    return file.name == std::string(prefix.body) + tokens;
  };
  if (std::ranges::any_of(files, is_named)) return;
  for (const FileTensor& file : files) {
    if (!file.name.ends_with("." + tokens)) continue;
    const std::string found = file.name.substr(0, file.name.size() - tokens.size());
    if (std::ranges::any_of(names.other_towers,
                            [&](std::string_view glob) { return glob_matches(glob, file.name); })) {
      continue;
    }
    throw DataError(
        arch.origin + ": the names of the files' tensors begin with '" + printable(found) + "' ('" +
        printable(file.name) + "'); those of " + arch.family + " begin with " +
        joined(names.prefixes, " or ",
               [](const NameTable::Prefix& one) { return "'" + std::string(one.body) + "'"; }) +
        "; write the weights again with transformers' save_pretrained");
  }
}

void check_files(const ModelSpec& model, const ArchSpec& arch, NameTable::Prefix prefix,
                 std::span<const FileTensor> files) {
  std::map<std::string_view, const FileTensor*> by_name;
  for (const FileTensor& file : files) by_name.emplace(file.name, &file);
  std::vector<std::string> problems = contradicted_sizes(arch, prefix, by_name);
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.adapter) continue;
      const auto found = by_name.find(parameter.name);
      if (found == by_name.end()) {
        problems.push_back("tensor '" + parameter.name + "' is missing" +
                           (parameter.name == head_name(arch, prefix) && !arch.tied_by_config
                                ? ", and tie_word_embeddings is not true"
                                : ""));
        continue;
      }
      const std::vector<int64_t> expected = parameter.stored_shape();
      if (found->second->shape != expected) {
        const std::vector<int64_t>& shape = found->second->shape;
        const bool turned =
            std::equal(shape.rbegin(), shape.rend(), expected.begin(), expected.end());
        problems.push_back("tensor '" + parameter.name + "' has shape " + shape_text(shape) +
                           ", expected " + shape_text(expected) + (turned ? ": transposed" : ""));
      }
      by_name.erase(found);
    }
  }
  for (const auto& [name, file] : by_name) {
    if (!is_skipped_tensor(arch, name)) {
      problems.push_back("tensor '" + std::string(name) + "' is no part of " + arch.family);
    }
  }
  if (problems.empty()) return;
  std::string text;
  constexpr size_t kMost = 50;
  for (size_t i = 0; i < problems.size() && i < kMost; ++i) {
    text += (i > 0 ? "\n" : "") + arch.origin + ": " + problems[i];
  }
  if (problems.size() > kMost) {
    text += "\n" + arch.origin + ": and " + std::to_string(problems.size() - kMost) + " more";
  }
  throw DataError(text);
}

// Returns whether the tensor is of keys or values in a layer that reads another's. Published files
// of Gemma 4 hold them, and nothing uses them.
bool is_shared_key(const ArchSpec& arch, const NameTable::Prefix& prefix, std::string_view name) {
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    if (arch.layers[static_cast<size_t>(layer)].keys_of < 0) continue;
    for (const Module module : {Module::kKey, Module::kValue, Module::kKeyNorm}) {
      for (const bool bias : {false, true}) {
        if (name == parameter_name(arch, false, prefix, module, bias, layer, -1)) return true;
      }
    }
  }
  return false;
}

}  // namespace

std::map<std::string, AdaptedPart> adapted_matrices(const ArchSpec& arch, const ModelSpec& model) {
  std::map<std::string, AdaptedPart> parts;
  const FileTensor tokens{.name = model.units.front().parameters.front().name, .shape = {}};
  const NameTable::Prefix prefix = find_prefix(arch, {&tokens, 1});
  const auto add = [&parts](const std::vector<ModuleParameter>& parameters) {
    for (const ModuleParameter& parameter : parameters) {
      if (parameter.adapted) parts.emplace(parameter.spec.name, *parameter.adapted);
    }
  };
  add(embedding_parameters(arch, prefix));
  add(input_parameters(arch, prefix));
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    add(block_parameters(arch, prefix, layer));
  }
  add(head_parameters(arch, prefix, !model.units.back().tied.empty()));
  return parts;
}

ArchSpec spelled_as(ArchSpec arch, std::span<const FileTensor> files) {
  const auto first = std::ranges::find_if(arch.layers, &LayerSpec::sparse);
  const NameTable& names = name_table(arch.family);
  const bool one_form = names.modules[static_cast<size_t>(Module::kExpertDown)].empty();
  if (files.empty() || first == arch.layers.end() || one_form) return arch;
  const std::string fused =
      parameter_name(arch, /*fused=*/true, find_prefix(arch, files), Module::kExpertsGateUp, false,
                     first - arch.layers.begin(), -1);
  arch.moe.fused = std::ranges::find(files, fused, &FileTensor::name) != files.end();
  return arch;
}

ModelSpec make_model_spec(const ArchSpec& family, std::span<const FileTensor> files) {
  const ArchSpec arch = spelled_as(family, files);
  const NameTable::Prefix prefix = find_prefix(arch, files);
  const bool tied = decide_tied(arch, prefix, files);
  ModelSpec model;
  model.units.push_back(make_unit(0, "embedding", embedding_parameters(arch, prefix),
                                  {{.elements_per_position = arch.hidden}}));
  // The embedding's backward reads no values but those of its adapter, and the rows that it norms.
  model.units.back().backward_reads_parameters =
      arch.embedding_norm || arch.adapter.adapts(kNoLayer, Module::kTokens);
  if (arch.layer_input > 0) {
    model.units.push_back(make_unit(1, kInputTableUnit, input_table_parameters(arch, prefix),
                                    input_table_carry(arch)));
    model.units.back().backward_reads_parameters = false;
    model.units.push_back(
        make_unit(2, kInputsUnit, input_parameters(arch, prefix), inputs_carry(arch)));
  }
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    model.units.push_back(make_unit(model.units.size(), "block." + std::to_string(layer),
                                    block_parameters(arch, prefix, layer),
                                    block_carry(arch, layer)));
    model.units.back().results = block_results(arch, layer);
  }
  model.units.push_back(
      make_unit(model.units.size(), "head", head_parameters(arch, prefix, tied), {}));
  if (tied) model.units.back().tied.push_back({.unit = UnitId(0), .index = 0});
  check_size(model, arch);
  if (!files.empty()) {
    check_prefix(arch, prefix, files);
    check_files(model, arch, prefix, files);
  }
  validate_model_spec(model);
  return model;
}

std::vector<std::string> unit_classes(const ArchSpec& arch, const ModelSpec& model) {
  const std::string block(name_table(arch.family).block_class);
  std::vector<std::string> classes(model.units.size(), block);
  classes.front() = "Embedding";
  classes.back() = "Head";
  for (size_t i = 0; i < classes.size(); ++i) {
    const std::string& name = model.units[i].name;
    if (name.starts_with(kInputTableUnit) || name == kInputsUnit) classes[i] = "LayerInputs";
  }
  return classes;
}

bool predicts_further_tokens(const ArchSpec& arch, std::string_view name) {
  const NameTable& names = name_table(arch.family);
  if (!names.extra_layer) return glob_matches("mtp.*", name);
  return std::ranges::any_of(names.prefixes, [&](const NameTable::Prefix& prefix) {
    return name.starts_with(std::string(prefix.body) + "layers." +
                            std::to_string(arch.layer_count()) + ".");
  });
}

bool is_skipped_tensor(const ArchSpec& arch, std::string_view name) {
  const NameTable& names = name_table(arch.family);
  for (std::string_view glob : names.other_towers) {
    if (glob_matches(glob, name)) return true;
  }
  if (names.extra_layer && predicts_further_tokens(arch, name)) return true;
  for (const NameTable::Prefix& prefix : names.prefixes) {
    if (is_shared_key(arch, prefix, name)) return true;
    for (std::string_view glob : names.skipped) {
      if (glob_matches(std::string(prefix.body) + std::string(glob), name)) return true;
    }
  }
  return false;
}

void freeze_parameters(ModelSpec& model, std::span<const std::string> globs,
                       const std::string& where) {
  std::vector<bool> found(globs.size());
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) {
      bool freezes = false;
      for (size_t i = 0; i < globs.size(); ++i) {
        const bool thaws = globs[i].starts_with('!');
        if ((thaws && !freezes) || !glob_matches(globs[i].substr(thaws), parameter.name)) continue;
        found[i] = true;
        freezes = !thaws;
      }
      parameter.frozen = parameter.frozen || freezes;
    }
  }
  std::vector<std::string> problems;
  for (size_t i = 0; i < globs.size(); ++i) {
    if (found[i]) continue;
    problems.push_back(where + ": '" + globs[i] + "' matches no parameter" +
                       (globs[i].starts_with('!') ? " that a glob before it freezes" : "") +
                       "; names look like '" +
                       model.units.at(model.units.size() > 1 ? 1 : 0).parameters.at(0).name + "'");
  }
  if (!problems.empty()) throw ConfigError(problems);
}

}  // namespace longshore
