#include "trainer/model/keys_beside_path.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/texts.h"
#include "config/field_table.h"
#include "config/toml_document.h"
#include "model/parameters/adapter.h"

namespace longshore {
namespace {

constexpr size_t kMostShown = 80;  // bytes of a value

// Returns the adapter's settings as keys of the run file.
RunConfig as_keys(const AdapterSettings& settings) {
  RunConfig own;
  own.adapter.r = settings.rank;
  own.adapter.alpha = settings.alpha;
  own.adapter.rslora = settings.rslora;
  own.adapter.dropout = settings.dropout;
  own.adapter.targets = settings.targets;
  own.adapter.rank_pattern = settings.ranks;
  own.adapter.alpha_pattern = settings.alphas;
  own.adapter.train = settings.trained;
  own.adapter.bias = settings.bias;
  return own;
}

bool agrees(const KeyBesidePath& said, const RunConfig& own, const ArchSpec& arch) {
  const Key& key = key_named(said.name);
  if (toml_text(key, key.get(own)) == said.value) return true;
  std::set<std::string> names;
  const std::optional<TomlValue> list = parse_toml_value(said.value, {});
  if (!list) return false;
  for (const TomlValue& element : list->elements) names.insert(element.string);
  if (said.name == "adapter.train") {
    return names == std::set(own.adapter.train.begin(), own.adapter.train.end());
  }
  if (said.name != "adapter.targets") return false;
  try {
    AdapterChoice choice;
    choice.targets.assign(names.begin(), names.end());
    const AdapterSpec other = choose_adapters(arch, choice, said.name);
    const auto place = [](const auto& target) { return target.first; };
    return std::ranges::equal(other.targets, arch.adapter.targets, {}, place, place);
  } catch (const ConfigError&) {
    return false;  // it names targets that this model does not have
  }
}

}  // namespace

std::string compare_beside_path(const KeysBesidePath& beside) {
  const RunConfig own = as_keys(beside.settings);
  const std::string file = beside.section.path + "/" + std::string(kAdapterConfigName);
  std::vector<std::string> problems, replaced, used;
  for (const KeyBesidePath& said : beside.section.beside_path) {
    if (agrees(said, own, beside.arch)) continue;
    const Key& key = key_named(said.name);
    const std::string ours = said.name + " = " + printable(said.value, kMostShown);
    const std::string theirs = printable(toml_text(key, key.get(own)), kMostShown);
    if (said.replaced) {
      replaced.push_back(ours + " (" + said.place + ")");
      used.push_back(key.name + " = " + theirs);
    } else {
      problems.push_back(said.place + ": " + ours + ", but adapter.path names an adapter with " +
                         theirs + " (" + file + "); leave " + said.name + " out");
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  if (replaced.empty()) return "";
  return "adapter.path: the adapter's " + joined(used, ", ") + " (" + file + ") replace " +
         joined(replaced, ", ");
}

}  // namespace longshore
