#include "trainer/directory/config_change.h"

#include <map>

#include "trainer/directory/config_values.h"

namespace longshore {
namespace {

bool of_the_call(const std::string& key) {
  return key.starts_with("run.") && key != "run.seed";
}

}  // namespace

std::vector<std::string> config_changes(const std::string& before, const std::string& now) {
  std::map<std::string, std::string> old = config_values(before);
  std::vector<std::string> lines;
  for (const auto& [key, value] : config_values(now)) {
    const auto found = old.find(key);
    const std::string was = found == old.end() ? "(unset)" : found->second;
    if (was != value && !of_the_call(key)) lines.push_back(key + ": " + was + " -> " + value);
    if (found != old.end()) old.erase(found);
  }
  for (const auto& [key, value] : old) {
    if (!of_the_call(key)) lines.push_back(key + ": " + value + " -> (unset)");
  }
  return lines;
}

}  // namespace longshore
