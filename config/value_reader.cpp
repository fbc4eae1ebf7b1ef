#include "config/value_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/bytes.h"
#include "base/texts.h"

namespace longshore {
namespace {

using Kind = TomlValue::Kind;

ReadValue problem(std::string text) {
  return {AutoValue{}, std::move(text)};
}

ReadValue expected(const Key& key, const std::string& what, const TomlValue& found) {
  return problem(key.full_name() + ": expected " + what + ", found " + describe(found));
}

ReadValue out_of_bounds(const Key& key, const std::string& shown) {
  return problem(key.full_name() + " = " + shown + ": must be " + key.bounds.text());
}

ReadValue read_integer(const Key& key, const TomlValue& found) {
  const std::string what = key.allows_auto ? "an integer or \"auto\"" : "an integer";
  if (found.kind != Kind::kInteger) return expected(key, what, found);
  if (!key.bounds.contain(static_cast<double>(found.integer))) {
    return out_of_bounds(key, std::to_string(found.integer));
  }
  return {found.integer, ""};
}

bool is_number(const TomlValue& found) {
  return found.kind == Kind::kInteger || found.kind == Kind::kReal;
}

double number_of(const TomlValue& found) {
  return found.kind == Kind::kInteger ? static_cast<double>(found.integer) : found.real;
}

ReadValue read_real(const Key& key, const TomlValue& found) {
  if (!is_number(found)) {
    return expected(key, key.allows_auto ? "a number or \"auto\"" : "a number", found);
  }
  const double number = number_of(found);
  if (!std::isfinite(number)) return expected(key, "a finite real", found);
  if (!key.bounds.contain(number)) return out_of_bounds(key, toml_text(key, number));
  return {number, ""};
}

ReadValue read_real_pair(const Key& key, const TomlValue& found) {
  const std::string what = "two reals such as " + toml_text(key, key.default_value());
  if (found.kind != Kind::kArray || found.elements.size() != 2) return expected(key, what, found);
  std::array<double, 2> pair{};
  for (size_t i = 0; i < pair.size(); ++i) {
    const TomlValue& element = found.elements[i];
    if (!is_number(element)) return expected(key, what, element);
    pair[i] = number_of(element);
    if (!std::isfinite(pair[i])) return expected(key, "finite reals", element);
  }
  if (!key.bounds.contain(pair[0]) || !key.bounds.contain(pair[1])) {
    return problem(key.full_name() + " = " + toml_text(key, pair) + ": each must be " +
                   key.bounds.text());
  }
  return {pair, ""};
}

ReadValue read_reals(const Key& key, const TomlValue& found) {
  if (found.kind != Kind::kArray) return expected(key, "a list of reals", found);
  std::vector<double> reals;
  for (const TomlValue& element : found.elements) {
    ReadValue read = read_real(key, element);
    if (!read.problem.empty()) return read;
    reals.push_back(std::get<double>(read.value));
  }
  return {std::move(reals), ""};
}

ReadValue read_integers(const Key& key, const TomlValue& found) {
  if (found.kind != Kind::kArray) return expected(key, "a list of integers", found);
  std::vector<int64_t> integers;
  for (const TomlValue& element : found.elements) {
    ReadValue read = read_integer(key, element);
    if (!read.problem.empty()) return read;
    integers.push_back(std::get<int64_t>(read.value));
  }
  return {std::move(integers), ""};
}

// Returns a plain value in a spelling of both JSON and TOML; nullopt for other values.
std::optional<std::string> plain_value(const TomlValue& value) {
  switch (value.kind) {
    case Kind::kBool:
      return value.boolean ? "true" : "false";
    case Kind::kInteger:
      return std::to_string(value.integer);
    case Kind::kString:
      return quote_toml(value.string);
    case Kind::kArray: {
      std::vector<std::string> strings;
      for (const TomlValue& element : value.elements) {
        if (element.kind != Kind::kString) return std::nullopt;
        strings.push_back(element.string);
      }
      return toml_list(strings);
    }
    default:
      return std::nullopt;
  }
}

ReadValue read_table(const Key& key, const TomlValue& found) {
  if (found.kind != Kind::kTable) {
    return expected(key, "a table such as { name = \"value\" }", found);
  }
  std::vector<std::string> entries;
  for (const TomlMember& member : found.members) {
    const std::optional<std::string> value = plain_value(member.value);
    if (!value) {
      return expected(key, "strings, lists of strings, integers, true and false in the table",
                      member.value);
    }
    const bool bare = member.name.find_first_not_of(
                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
                      std::string::npos;
    if (member.name.empty() || !bare) {
      return problem(key.full_name() + ": " + quote_toml(member.name) +
                     " is no plain name: letters, digits, _ and -");
    }
    entries.push_back(member.name + " = " + *value);
  }
  return {std::move(entries), ""};
}

ReadValue read_patterns(const Key& key, const TomlValue& found) {
  if (found.kind != Kind::kTable) {
    return expected(key, "a table such as { \"q_proj\" = 16 }", found);
  }
  std::vector<PatternNumber> patterns;
  for (const TomlMember& member : found.members) {
    Key entry = key;
    entry.name += "." + quote_toml(member.name);
    if (member.value.kind == Kind::kTable) {
      return problem(entry.full_name() + " is a table; write a pattern with dots in quotes");
    }
    const ReadValue read = read_real(entry, member.value);
    if (!read.problem.empty()) return read;
    patterns.push_back({member.name, std::get<double>(read.value)});
  }
  return {std::move(patterns), ""};
}

ReadValue read_bytes(const Key& key, const TomlValue& found) {
  const std::string what = "a size with a unit such as \"24GiB\", or \"auto\"";
  if (found.kind != Kind::kString) return expected(key, what, found);
  const std::optional<Bytes> bytes = parse_bytes(found.string);
  if (!bytes) return expected(key, what, found);
  if (!key.bounds.contain(static_cast<double>(*bytes))) {
    return out_of_bounds(key, quote_toml(found.string));
  }
  return {*bytes, ""};
}

ReadValue read_duration(const Key& key, const TomlValue& found) {
  const std::string what = "a duration with a unit such as \"90s\", \"10m\" or \"2h\"";
  if (found.kind != Kind::kString) return expected(key, what, found);
  const auto duration = parse_duration(found.string);
  if (!duration) return expected(key, what, found);
  if (!key.bounds.contain(static_cast<double>(duration->count()))) {
    return out_of_bounds(key, quote_toml(found.string));
  }
  return {int64_t{duration->count()}, ""};
}

// A value of other programs, the choice that it is here, and what else to say.
struct OtherChoice {
  std::string_view said;  // a glob
  std::string_view choice;
  std::string_view hint = "";
};

// The first that matches counts. Other trainers have an AdamW for each way to keep its moments:
// "adamw_torch", "paged_adamw_8bit".
constexpr auto kElsewhere = std::to_array<OtherChoice>(
    {{"gpu", "cuda"},
     {"nvidia", "cuda"},
     {"float32", "fp32"},
     {"f32", "fp32"},
     {"bfloat16", "bf16"},
     {"disk", "nvme"},
     {"ssd", "nvme"},
     {"ram", "host"},
     {"*adamw*8bit*", "adamw",
      " Its moments have 8 bits with offload.state_format = \"split-int8\""},
     {"*adamw*", "adamw"}});

// Returns null if the key has no such choice.
const OtherChoice* meant_elsewhere(const Key& key, const std::string& said) {
  const auto found = std::ranges::find_if(kElsewhere, [&](const OtherChoice& one) {
    return glob_matches(one.said, said) && std::ranges::count(key.choices, one.choice) > 0;
  });
  return found == kElsewhere.end() ? nullptr : &*found;
}

ReadValue read_choice(const Key& key, const TomlValue& found) {
  if (found.kind != Kind::kString) return expected(key, key.type_text(), found);
  if (std::find(key.choices.begin(), key.choices.end(), found.string) != key.choices.end()) {
    return {found.string, ""};
  }
  const OtherChoice* const other = meant_elsewhere(key, found.string);
  const std::string meant =
      other == nullptr ? nearest_name(found.string, key.choices) : std::string(other->choice);
  ReadValue wrong = expected(key, key.type_text(), found);
  if (!meant.empty()) wrong.problem += ", did you mean " + quote_toml(meant) + "?";
  if (other != nullptr) wrong.problem += other->hint;
  return wrong;
}

// Expands "~" and "~/..." to the user's home directory.
ReadValue read_path(const Key& key, const TomlValue& found) {
  const std::string& path = found.string;
  if (path != "~" && !path.starts_with("~/")) return {path, ""};
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    return problem(key.full_name() + ": " + quote_toml(path) + " needs HOME, which is not set");
  }
  return {home + path.substr(1), ""};
}

// Reads a non-empty string.
ReadValue read_string(const Key& key, const TomlValue& found, const std::string& what) {
  if (found.kind != Kind::kString) return expected(key, what, found);
  if (found.string.empty()) return problem(key.full_name() + ": expected " + what + ", found \"\"");
  if (found.string.find('\0') != std::string::npos) {
    return problem(key.full_name() + ": the string holds a NUL");
  }
  if (key.type == KeyType::kStrings || key.type == KeyType::kString) return {found.string, ""};
  return read_path(key, found);
}

ReadValue read_strings(const Key& key, const TomlValue& found) {
  const std::string name = key.type == KeyType::kPaths ? "path" : "string";
  if (found.kind != Kind::kArray) {
    ReadValue wrong = expected(key, "a list of " + name + "s", found);
    if (found.kind == Kind::kString) wrong.problem += "; write [" + quote_toml(found.string) + "]";
    return wrong;
  }
  std::vector<std::string> strings;
  for (const TomlValue& element : found.elements) {
    ReadValue read = read_string(key, element, "a " + name + " in the list");
    if (!read.problem.empty()) return read;
    strings.push_back(std::get<std::string>(std::move(read.value)));
  }
  return {std::move(strings), ""};
}

// Reads a unit policy: a string, or a table with one member.
ReadValue read_units(const Key& key, const TomlValue& found) {
  const std::string what =
      "\"block\", \"half\", \"piece\", \"auto\", { rows = N }, { classes = [...] }, "
      "{ min_parameters = N } or { groups = [[...], ...] }";
  UnitsChoice units;
  if (found.kind == Kind::kString) {
    for (const auto kind : {UnitsChoice::Kind::kBlock, UnitsChoice::Kind::kHalf,
                            UnitsChoice::Kind::kPiece, UnitsChoice::Kind::kAuto}) {
      units.kind = kind;
      if (found.string == name_of(kind)) return {units, ""};
    }
  }
  if (found.kind != Kind::kTable || found.members.size() != 1) return expected(key, what, found);
  const TomlMember& member = found.members.front();
  const auto part = [&](KeyType type) {
    Key inner;
    inner.section = key.full_name();
    inner.name = member.name;
    inner.type = type;
    inner.bounds.min = 1;
    return inner;
  };
  if (member.name == "min_parameters" || member.name == "rows") {
    ReadValue read = read_integer(part(KeyType::kInteger), member.value);
    if (!read.problem.empty()) return read;
    const bool rows = member.name == "rows";
    units.kind = rows ? UnitsChoice::Kind::kRows : UnitsChoice::Kind::kMinParameters;
    (rows ? units.rows : units.min_parameters) = std::get<int64_t>(read.value);
  } else if (member.name == "classes") {
    ReadValue read = read_strings(part(KeyType::kStrings), member.value);
    if (!read.problem.empty()) return read;
    units.kind = UnitsChoice::Kind::kClasses;
    units.classes = std::get<std::vector<std::string>>(std::move(read.value));
  } else if (member.name == "groups") {
    units.kind = UnitsChoice::Kind::kGroups;
    if (member.value.kind != Kind::kArray) {
      return expected(part(KeyType::kStrings), "a list of lists of strings", member.value);
    }
    for (const TomlValue& group : member.value.elements) {
      ReadValue read = read_strings(part(KeyType::kStrings), group);
      if (!read.problem.empty()) return read;
      units.groups.push_back(std::get<std::vector<std::string>>(std::move(read.value)));
    }
  } else {
    return problem(key.full_name() + ": expected " + what + ", found a table with '" + member.name +
                   "'");
  }
  return {std::move(units), ""};
}

using Kind = TomlValue::Kind;

const std::vector<std::string> kNames = {"parameters", "lr", "weight_decay"};

// Returns the problem with a number, or "".
std::string read_number(const std::string& name, const TomlValue& found,
                        std::optional<double>& number) {
  if (found.kind != Kind::kInteger && found.kind != Kind::kReal) {
    return name + ": expected a number, found " + describe(found);
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
  if (!group.lr && !group.weight_decay) return where + ": add an lr or a weight_decay";
  return "";
}

}  // namespace

ReadValue read_key_value(const Key& key, const TomlValue& value) {
  if (key.allows_auto && value.kind == Kind::kString && value.string == "auto") {
    return {AutoValue{}, ""};
  }
  switch (key.type) {
    case KeyType::kBool:
      if (value.kind != Kind::kBool) return expected(key, "true or false", value);
      return {value.boolean, ""};
    case KeyType::kInteger:
      return read_integer(key, value);
    case KeyType::kReal:
      return read_real(key, value);
    case KeyType::kRealPair:
      return read_real_pair(key, value);
    case KeyType::kReals:
      return read_reals(key, value);
    case KeyType::kIntegers:
      return read_integers(key, value);
    case KeyType::kTable:
      return read_table(key, value);
    case KeyType::kPatterns:
      return read_patterns(key, value);
    case KeyType::kString:
      return read_string(key, value, "a text");
    case KeyType::kPath:
      return read_string(key, value, "a path");
    case KeyType::kPaths:
    case KeyType::kStrings:
      return read_strings(key, value);
    case KeyType::kBytes:
      return read_bytes(key, value);
    case KeyType::kDuration:
      return read_duration(key, value);
    case KeyType::kChoice:
      return read_choice(key, value);
    case KeyType::kUnits:
      return read_units(key, value);
    case KeyType::kGroups:
      return read_groups(key, value);
  }
  return problem(key.full_name() + ": a key without a type");
}

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
    text += (text.empty() ? "{ parameters = " : ", { parameters = ") + toml_list(group.parameters);
    if (group.lr) text += ", lr = " + real_text(*group.lr);
    if (group.weight_decay) text += ", weight_decay = " + real_text(*group.weight_decay);
    text += " }";
  }
  return "[" + text + "]";
}

}  // namespace longshore
