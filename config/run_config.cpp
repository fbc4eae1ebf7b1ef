#include "config/run_config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/errors.h"
#include "base/file.h"
#include "base/nearest.h"
#include "config/field_table.h"
#include "config/run_rules.h"
#include "config/toml_document.h"
#include "config/value_reader.h"

namespace longshore {
namespace {

constexpr Bytes kMaxRunFile = kMiB;

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Section& section : run_file_sections()) names.push_back(section.name);
  return names;
}

std::vector<std::string> key_names(const Section& section) {
  std::vector<std::string> names;
  for (const Key& key : section.keys) names.push_back(key.name);
  return names;
}

// The first section that has a key of this name; empty when there is none.
std::string full_name_elsewhere(const std::string& name) {
  for (const Section& section : run_file_sections()) {
    if (find_key(section.name, name) != nullptr) return section.name + "." + name;
  }
  return "";
}

// Names come from outside: no control characters, and not longer than a line.
std::string shown(const std::string& name) {
  constexpr size_t kMaxShown = 80;
  const std::string quoted = quote_toml(name.substr(0, kMaxShown));
  return quoted.substr(1, quoted.size() - 2) + (name.size() > kMaxShown ? "..." : "");
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : ", did you mean '" + name + "'?";
}

std::string unknown_section(const std::string& name) {
  const std::vector<std::string> names = section_names();
  return "unknown section '" + shown(name) + "'" + did_you_mean(nearest_name(name, names)) +
         " (longshore config keys)";
}

std::string unknown_key(const Section& section, const std::string& name) {
  std::string meant = nearest_name(name, key_names(section));
  if (meant.empty()) meant = full_name_elsewhere(name);
  return "unknown key '" + section.name + "." + shown(name) + "'" + did_you_mean(meant) +
         " (longshore config keys " + section.name + ")";
}

// Gathers what files and overrides say, and every problem with it.
class Loader {
 public:
  void read_file(const std::string& file) {
    const std::string origin = file == "-" ? "stdin" : file;
    if (places_.run_file.empty()) places_.run_file = origin;
    if (file == "-" && stdin_read_) {
      problems_.push_back("stdin: standard input is given twice");
      return;
    }
    stdin_read_ = stdin_read_ || file == "-";
    try {
      for (const TomlMember& member : parse_toml(text_of(file), origin)) read_section(member);
    } catch (const Error& error) {
      problems_.push_back(error.what());
      unreadable_ = true;
    }
  }

  void read_override(const Override& said) {
    const Place place{"--" + shown(said.key), 0, 0};
    const size_t dot = said.key.find('.');
    if (dot == std::string::npos) {
      problems_.push_back(place.text() + ": expected --section.key=value");
      return;
    }
    const std::string section_name = said.key.substr(0, dot);
    const Section* section = find_section(section_name);
    if (section == nullptr) {
      problems_.push_back(place.text() + ": " + unknown_section(section_name));
      return;
    }
    const std::string name = said.key.substr(dot + 1);
    const Key* key = find_key(section_name, name);
    if (key == nullptr) {
      problems_.push_back(place.text() + ": " + unknown_key(*section, name));
      return;
    }
    set(*key, override_value(*key, said.value, place));
  }

  RunConfig finish(const LoadOptions& options) {
    if (options.complete && !unreadable_) {
      if (places_.run_file.empty()) places_.run_file = "command line";
      for (std::string& problem : broken_rules(config_, places_)) {
        problems_.push_back(std::move(problem));
      }
    }
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return std::move(config_);
  }

 private:
  static std::string text_of(const std::string& file) {
    try {
      if (file == "-") return read_to_end(duplicate_stdin(), kMaxRunFile);
      return read_whole_file(file, kMaxRunFile);
    } catch (const IoError& error) {
      std::error_code ignored;
      const std::string tried = std::filesystem::absolute(file, ignored).string();
      const std::string where = ignored || tried == file || file == "-" ? "" : " (" + tried + ")";
      throw ConfigError(std::string(error.what()) + where);
    }
  }

  // The text is TOML, unless it is none, or unless only a string fits the key: dates and numbers
  // are names of directories too.
  static TomlValue override_value(const Key& key, const std::string& text, const Place& place) {
    const bool wants_string = key.type == KeyType::kPath || key.type == KeyType::kChoice ||
                              key.type == KeyType::kBytes || key.type == KeyType::kDuration ||
                              key.type == KeyType::kString;
    std::optional<TomlValue> value = parse_toml_value(text, place);
    if (value && (!wants_string || value->kind == TomlValue::Kind::kString)) return *value;
    TomlValue string;
    string.kind = TomlValue::Kind::kString;
    string.string = text;
    string.place = place;
    return string;
  }

  void read_section(const TomlMember& member) {
    const Section* section = find_section(member.name);
    if (section == nullptr) {
      problems_.push_back(member.place.text() + ": " + unknown_member(member));
      return;
    }
    if (member.value.kind != TomlValue::Kind::kTable) {
      problems_.push_back(member.place.text() + ": expected the section [" + member.name +
                          "], found " + describe(member.value));
      return;
    }
    for (const TomlMember& entry : member.value.members) {
      const Key* key = find_key(section->name, entry.name);
      if (key == nullptr) {
        problems_.push_back(entry.place.text() + ": " + unknown_key(*section, entry.name));
      } else {
        set(*key, entry.value);
      }
    }
  }

  static std::string unknown_member(const TomlMember& member) {
    if (member.value.kind == TomlValue::Kind::kTable) return unknown_section(member.name);
    return "key '" + shown(member.name) + "' stands outside of a section" +
           did_you_mean(full_name_elsewhere(member.name)) + " (longshore config keys)";
  }

  void set(const Key& key, const TomlValue& value) {
    const ReadValue read = read_key_value(key, value);
    const std::string name = key.full_name();
    if (!read.problem.empty()) {
      problems_.push_back(value.place.text() + ": " + read.problem);
      places_.wrong.insert(name);
      return;
    }
    key.set(config_, read.value);
    places_.said[name] = value.place;
  }

  RunConfig config_;
  KeyPlaces places_;
  std::vector<std::string> problems_;
  bool stdin_read_ = false;
  bool unreadable_ = false;  // a file could not be read to its end: what is missing is unknown
};

std::string toml_of(const RunConfig& config, bool changed_only) {
  std::string text;
  for (const Section& section : run_file_sections()) {
    std::string lines;
    for (const Key& key : section.keys) {
      const KeyValue value = key.get(config);
      if (changed_only && value == key.default_value()) continue;
      lines += key.name + " = " + toml_text(key, value) + "\n";
    }
    if (lines.empty()) continue;
    text += (text.empty() ? "[" : "\n[") + section.name + "]\n" + lines;
  }
  return text;
}

}  // namespace

RunConfig load_run_config(const std::vector<std::string>& files,
                          const std::vector<Override>& overrides, const LoadOptions& options) {
  Loader loader;
  for (const std::string& file : files) loader.read_file(file);
  for (const Override& said : overrides) loader.read_override(said);
  return loader.finish(options);
}

std::string to_toml(const RunConfig& config) {
  return toml_of(config, false);
}

std::string changed_keys(const RunConfig& config) {
  return toml_of(config, true);
}

}  // namespace longshore
