#include "trainer/directory/config_change.h"

#include <map>
#include <sstream>

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

// The text has a line for each section, followed by one line for each of its keys.
std::map<std::string, std::string> config_values(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[') && line.ends_with(']')) {
      section = line.substr(1, line.size() - 2) + ".";
      continue;
    }
    const size_t equals = line.find(" = ");
    if (line.starts_with('#') || equals == std::string::npos) continue;
    values[section + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return values;
}

}  // namespace longshore
