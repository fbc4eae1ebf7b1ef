#include "trainer/directory/config_values.h"

#include <sstream>

namespace longshore {

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
