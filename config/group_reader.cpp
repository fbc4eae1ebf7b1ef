#include "config/group_reader.h"

#include <cmath>
#include <optional>

#include "base/texts.h"

namespace longshore {
namespace {

using Kind = TomlValue::Kind;

const std::vector<std::string> kNames = {"parameters", "lr", "weight_decay"};

ReadValue problem(std::string text) {
  return {AutoValue{}, std::move(text)};
}

// Returns the problem with a number, or "".
std::string read_number(const std::string& name, const TomlValue& found,
                        std::optional<double>& number) {
  if (found.kind != Kind::kInteger && found.kind != Kind::kReal) {
    return name + ": expected a real, found " + describe(found);
  }
  number = found.kind == Kind::kInteger ? static_cast<double>(found.integer) : found.real;
  const bool usable = std::isfinite(*number) && *number >= 0.0;
  return usable ? "" : name + ": must be at least 0, found " + describe(found);
}

std::string read_globs(const std::string& name, const TomlValue& found,
                       std::vector<std::string>& globs) {
  for (const TomlValue& element : found.elements) {
    const bool usable = element.kind == Kind::kString && !element.string.empty() &&
                        element.string.find('\0') == std::string::npos;
    if (!usable) return name + ": expected a glob of names, found " + describe(element);
    globs.push_back(element.string);
  }
  if (!globs.empty()) return "";
  return name + ": expected a list of globs such as [\"*.bias\"], found " + describe(found);
}

std::string read_group(const std::string& where, const TomlValue& table, ParameterGroup& group) {
  if (table.kind != Kind::kTable) return where + ": expected a table, found " + describe(table);
  for (const TomlMember& member : table.members) {
    const std::string name = where + "." + member.name;
    std::string wrong;
    if (member.name == "parameters") {
      wrong = read_globs(name, member.value, group.parameters);
    } else if (member.name == "lr") {
      wrong = read_number(name, member.value, group.lr);
    } else if (member.name == "weight_decay") {
      wrong = read_number(name, member.value, group.weight_decay);
    } else {
      const std::string nearest = nearest_name(member.name, kNames);
      wrong = "unknown key " + quote_toml(name.substr(0, 80)) +
              (nearest.empty() ? "" : ", did you mean '" + nearest + "'?");
    }
    if (!wrong.empty()) return wrong;
  }
  if (group.parameters.empty()) return where + ": add parameters = [\"*.bias\"], globs of names";
  if (!group.lr && !group.weight_decay) return where + ": add an lr or a weight_decay of its own";
  return "";
}

}  // namespace

ReadValue read_groups(const Key& key, const TomlValue& value) {
  if (value.kind != Kind::kArray) {
    return problem(key.full_name() + ": expected [[" + key.full_name() + "]] tables, found " +
                   describe(value));
  }
  std::vector<ParameterGroup> groups;
  for (const TomlValue& table : value.elements) {
    const std::string where = key.full_name() + "[" + std::to_string(groups.size() + 1) + "]";
    ParameterGroup group;
    std::string wrong = read_group(where, table, group);
    if (!wrong.empty()) return problem(std::move(wrong));
    groups.push_back(std::move(group));
  }
  return {std::move(groups), ""};
}

std::string groups_text(const std::vector<ParameterGroup>& groups) {
  std::string text;
  for (const ParameterGroup& group : groups) {
    std::string globs;
    for (const std::string& glob : group.parameters) {
      globs += (globs.empty() ? "" : ", ") + quote_toml(glob);
    }
    text += (text.empty() ? "{ parameters = [" : ", { parameters = [") + globs + "]";
    if (group.lr) text += ", lr = " + real_text(*group.lr);
    if (group.weight_decay) text += ", weight_decay = " + real_text(*group.weight_decay);
    text += " }";
  }
  return "[" + text + "]";
}

}  // namespace longshore
