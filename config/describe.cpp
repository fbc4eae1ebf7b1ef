#include "config/describe.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/texts.h"
#include "config/field_table.h"

namespace longshore {
namespace {

const Section& section_named(std::string_view name) {
  const Section* section = find_section(name);
  if (section != nullptr) return *section;
  std::vector<std::string> names;
  for (const Section& known : run_file_sections()) names.push_back(known.name);
  const std::string nearest = nearest_name(name, names);
  throw ConfigError("unknown section '" + std::string(name) + "'" +
                    (nearest.empty() ? "" : ", did you mean '" + nearest + "'?") +
                    " (longshore config keys)");
}

// Returns "integer (steps), at least 0".
std::string type_and_bounds(const Key& key) {
  std::string text = key.type_text();
  // Sizes and durations are always positive, so their bounds are omitted.
  const bool plain = key.type != KeyType::kBytes && key.type != KeyType::kDuration;
  if (plain && !key.bounds.text().empty()) text += ", " + key.bounds.text();
  return text;
}

std::string default_text(const Key& key) {
  return key.required() ? "" : toml_text(key, key.default_value());
}

std::string default_or_needed(const Key& key) {
  return key.required() ? "needed" : "default " + default_text(key);
}

// Removes quotes, as on the command line, where a value that is not TOML is a string.
std::string unquoted(const std::string& value) {
  return value.size() < 2 || value[0] != '"' ? value : value.substr(1, value.size() - 2);
}

// Wraps the text at blanks into lines of at most `columns`, each with `indent`.
std::string wrapped(const std::string& text, const std::string& indent, size_t columns) {
  std::string lines;
  std::string line;
  size_t at = 0;
  while (at < text.size()) {
    const size_t blank = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, blank - at);
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > columns) {
      lines += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = blank + 1;
  }
  return lines + indent + line + "\n";
}

std::string describe_section(const Section& section) {
  std::string text = "[" + section.name + "]  " + section.description + "\n";
  for (const Key& key : section.keys) {
    text += "  " + key.name + "\n";
    text += wrapped(key.description, "      ", 100);
    text += wrapped(type_and_bounds(key) + "; " + default_or_needed(key), "      ", 100);
  }
  return text;
}

std::string reference_key(const Key& key) {
  std::string text = wrapped(key.description, "# ", 100);
  text += wrapped("(" + type_and_bounds(key) + (key.required() ? "; needed)" : ")"), "# ", 100);
  if (key.required()) return text + "# " + key.name + " = " + key.example + "\n";
  return text + key.name + " = " + default_text(key) + "\n";
}

// Escapes a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

std::string describe_keys(std::string_view section) {
  if (!section.empty()) return describe_section(section_named(section));
  return joined(run_file_sections(), "\n", describe_section);
}

std::string help_overview() {
  constexpr size_t kNameColumns = 14;
  std::string text;
  for (const Section& section : run_file_sections()) {
    const std::string names = joined(section.keys, " ", [](const Key& key) { return key.name; });
    const std::string label = "  " + section.name;
    const std::string lines = wrapped(names, std::string(kNameColumns, ' '), 100);
    text += label + lines.substr(label.size());
  }
  return text;
}

std::string help_text(std::string_view section) {
  const Section& found = section_named(section);
  std::string text = found.name + ": " + found.description + "\n";
  for (const Key& key : found.keys) {
    const std::string value = key.required() ? key.example : default_text(key);
    text += "  --" + key.full_name() + "=" + unquoted(value) + "\n";
    text += wrapped(key.description, "      ", 100);
    text += wrapped(type_and_bounds(key), "      ", 100);
  }
  return text;
}

std::string reference_toml() {
  std::string text =
      "# Every key of a run file with its default. Made from the table in config/field_table.cpp.\n"
      "# A key that is needed has no default and is shown as an example.\n";
  for (const Section& section : run_file_sections()) {
    text += "\n# " + section.description + "\n[" + section.name + "]\n";
    for (const Key& key : section.keys) text += reference_key(key);
  }
  return text;
}

std::string run_file_page() {
  std::string text =
      "# The run file\n\n"
      "One TOML file is the whole run. Every key can be given on the command line as\n"
      "`--section.key=value`, which wins over files; of several files the later one wins, key by\n"
      "key. Unknown keys, wrong types and values out of bounds are errors with their place. Sizes\n"
      "are strings with a unit (`\"24GiB\"`, `\"24GB\"`); `~` is expanded; relative paths are\n"
      "relative to the current directory.\n\n"
      "This page is made from the table in `config/field_table.cpp`, as are\n"
      "`config/reference.toml` and `longshore config keys`.\n";
  for (const Section& section : run_file_sections()) {
    text += "\n## [" + section.name + "]: " + section.description + "\n\n";
    text += "| key | type | default | meaning |\n|---|---|---|---|\n";
    for (const Key& key : section.keys) {
      const std::string value = key.required() ? "needed" : "`" + default_text(key) + "`";
      text += "| `" + key.name + "` | " + cell(type_and_bounds(key)) + " | " + value + " | " +
              cell(key.description) + " |\n";
    }
  }
  return text;
}

}  // namespace longshore
