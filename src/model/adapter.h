// adapter: which matrices of a decoder get low-rank adapters, what their parameters are called, and
// which other parameters are trained beside them. The words mean what they mean to PEFT. Pure
// functions, no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/arch_spec.h"
#include "shard/unit_spec.h"

namespace longshore {

// The choices of [adapter] in the run file or of an adapter_config.json.
struct AdapterChoice {
  int64_t rank = 8;
  double alpha = 8.0;
  bool rslora = false;   // scaling is alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank
  bool dora = false;     // with magnitudes
  double dropout = 0.0;  // from 0, below 1
  // Each is "attention", "mlp" or "all-linear", the last parts of a module's name ("q_proj",
  // "self_attn.q_proj"), or a glob over the whole name of a module.
  std::vector<std::string> targets;
};

// Returns the adapters that the choice asks for. Throws ConfigError, whose message begins with
// `where`, if a target is nothing in this model or cannot have an adapter: experts, embedding,
// head.
AdapterSpec choose_adapters(const ArchSpec& arch, const AdapterChoice& choice,
                            const std::string& where);

// Returns the name of the module of a parameter: "model.norm" for "model.norm.weight".
std::string module_of(std::string_view parameter);

// The names of the adapter of a module's weight; nullopt for a parameter that is no weight.
struct AdapterNames {
  std::string a, b, magnitude;
};
std::optional<AdapterNames> adapter_names(std::string_view parameter);
// Returns the weight whose magnitude this is; empty if it is no magnitude.
std::string weight_of_magnitude(std::string_view parameter);

// Returns the targets as PEFT's target_modules: the last parts of their names where these name
// nothing else, otherwise their whole names.
std::vector<std::string> target_names(const ArchSpec& arch);

// Freezes every parameter but those of adapters and those of the modules that `trained` names: by
// the end of the module's name, as PEFT's modules_to_save does, or by a glob over the whole name.
// Throws ConfigError, whose message begins with `where`, for what matches nothing and for a tied
// matrix.
void freeze_base(ModelSpec& model, std::span<const std::string> trained, const std::string& where);

// Returns the names of the modules that are trained in full.
std::vector<std::string> trained_modules(const ModelSpec& model);

// Returns the model without its adapters, as its files hold it, with the adapted matrices trained.
ModelSpec merged_spec(const ModelSpec& model);

}  // namespace longshore
