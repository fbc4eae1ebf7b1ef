// adapter: which matrices of a decoder get low-rank adapters, what their parameters are called, and
// which other parameters are trained beside them. The words mean what they mean to PEFT. Pure
// functions, no LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/adapter_values.h"
#include "model/families/arch_spec.h"
#include "shard/unit_spec.h"

namespace longshore {

// The choices of [adapter] in the run file or of an adapter_config.json.
struct AdapterChoice {
  int64_t rank = 8;
  double alpha = 8.0;
  // Other ranks and alphas of matrices whose names in transformers a pattern matches first.
  std::vector<PatternNumber> ranks = {}, alphas = {};
  // Whether a pattern may match no adapted matrix, as in PEFT's files.
  bool spare_patterns = false;
  // Whether experts' gate and up, which are one parameter, have twice the rank and alpha where no
  // pattern matches.
  bool gate_up_doubled = true;
  bool rslora = false;   // scaling is alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank
  bool dora = false;     // with magnitudes
  double dropout = 0.0;  // from 0, below 1
  // Each is "attention", "mlp" or "all-linear", the last parts of a module's name ("q_proj",
  // "self_attn.q_proj"), or, over the whole name of a module, a glob or "re:" with a regular
  // expression in the syntax of Python's `re`. Experts and routers have the names of transformers:
  // "experts.gate_up_proj", "experts.down_proj", "gate". In a model of these, dense layers and
  // experts for all tokens have no MLP to adapt, because PEFT takes its names for those of experts.
  std::vector<std::string> targets;
  std::vector<std::string> excluded = {};  // what is no target, in the same words
  std::vector<int64_t> layers = {};        // the only layers with targets; empty: everywhere
};

// Returns the adapters that the choice asks for: the one place that decides which matrix of which
// layer has an adapter, and of which rank and scaling. The embedding and the head are only adapted
// where they are named. Throws ConfigError, whose message begins with `where` (targets) or with the
// name of a pattern's table, if a target is nothing in this model or cannot have an adapter:
// experts of a family whose experts PEFT does not adapt.
AdapterSpec choose_adapters(const ArchSpec& arch, const AdapterChoice& choice,
                            const std::string& where);

// Returns whether a new adapter of this family's experts has twice the rank and alpha for gate and
// up (AdapterChoice::gate_up_doubled).
bool doubles_gate_up(const ArchSpec& arch);

// Returns the name of the module of a parameter: "model.norm" for "model.norm.weight".
std::string module_of(std::string_view parameter);

// The names of a module's adapter.
struct AdapterNames {
  std::string a, b, magnitude;
};
// `lookup`: the module is an embedding.
AdapterNames adapter_names(const std::string& module, bool lookup = false);
// Returns the weight whose magnitude this is; empty if it is no magnitude.
std::string weight_of_magnitude(std::string_view parameter);

// Returns the targets as PEFT's target_modules: the last parts of their names where these name
// nothing else, otherwise their whole names.
std::vector<std::string> target_names(const ArchSpec& arch);
// Returns the experts and routers among them as PEFT's target_parameters.
std::vector<std::string> target_parameters(const ArchSpec& arch);
// Returns a number of each target that is not `usual` as PEFT's rank_pattern or alpha_pattern: by
// the last part of its name where all targets of that part have the number, otherwise by its whole
// name, sorted. `number_of` takes the size of a target.
std::vector<PatternNumber> number_patterns(
    const ArchSpec& arch, double usual,
    const std::function<double(const AdapterSpec::Size&)>& number_of);

// PEFT stores an adapter of all experts as matrices: A has rows by expert, then by rank; B has
// columns by rank, then by expert. Of an embedding it stores A with a column for each token. Other
// parameters are stored as they are.
std::vector<int64_t> peft_shape(const ParamSpec& parameter);
// Returns whether PEFT's order of the elements differs from the parameter's own.
bool peft_reorders(const ParamSpec& parameter);
// Turns the whole of such a parameter from PEFT's order to its own, or back.
std::vector<float> from_peft(const ParamSpec& parameter, std::span<const float> values);
std::vector<float> to_peft(const ParamSpec& parameter, std::span<const float> values);

// Returns the modules with an adapter, by their names in the model's files.
std::set<std::string> adapted_modules(const ModelSpec& model);

// Freezes every parameter but those of adapters, the biases that `bias` means, and those of the
// modules that `trained` names: by the end of the module's name, as PEFT's modules_to_save does, or
// by a glob over the whole name. Throws ConfigError, whose message begins with `where`, for what
// matches nothing. An embedding that is also the head is trained as both.
void freeze_base(ModelSpec& model, std::span<const std::string> trained, const std::string& where,
                 AdapterBias bias = AdapterBias::kNone);

// Throws ConfigError, whose message begins with `where`, if an adapter is on an embedding that is
// also the head, or on that head: PEFT trains it on one of the two, and merges it into both.
void check_tied_targets(const ArchSpec& arch, const ModelSpec& model, const std::string& where);

// Returns the embedding's parameter if it is also the head and trained in full; otherwise null.
const ParamSpec* trained_tied_table(const ModelSpec& model);

// Returns the names of the modules that are trained in full, not those with a trained bias alone.
std::vector<std::string> trained_modules(const ModelSpec& model);

// Returns the model without its adapters, as its files hold it, with the adapted matrices trained.
ModelSpec merged_spec(const ArchSpec& arch, const ModelSpec& model);

}  // namespace longshore
