// AdapterSelection: the modules that an adapter_config.json selects by a regular expression
// (target_modules), by excluded modules (exclude_modules) and by a choice of layers
// (layers_to_transform), as PEFT 0.21 matches them. Plain value, any thread.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/name_pattern.h"
#include "hf/adapter_directory.h"

namespace longshore {

class AdapterSelection {
 public:
  // `config` is the object of adapter_config.json; absent keys select everything. `refuse` takes a
  // key and the reason why its value cannot be read.
  using Refuse = std::function<void(const std::string& key, const std::string& why)>;
  AdapterSelection(const Json& config, const Refuse& refuse);

  // Returns whether PEFT makes an adapter for this module; a list in target_modules is not looked
  // at. `module` is a whole name, "model.layers.0.self_attn.q_proj".
  bool selects(const std::string& module) const;
  // Returns the first layer of layers_to_transform that none of the modules belongs to.
  std::optional<int64_t> layer_without(const std::vector<std::string>& modules) const;

 private:
  void read_layers(const Json& config, const Refuse& refuse);
  std::optional<int64_t> layer_of(std::string_view module) const;

  std::optional<NamePattern> targets_, excluded_;
  std::vector<std::string> excluded_names_;
  std::optional<std::set<int64_t>> layers_;
  std::vector<std::string> layers_patterns_;  // names of the lists of layers; empty: any
};

// Throws DataError unless PEFT would make adapters for exactly the `modules` that the weight file
// has. `weights` is the file's path.
void check_selection(const AdapterSelection& selection, const AdapterSettings& settings,
                     const std::vector<std::string>& modules, const std::string& weights);

}  // namespace longshore
