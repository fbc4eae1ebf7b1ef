#include "config/run_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"
#include "config/field_table.h"
#include "config/other_trainers.h"
#include "config/run_arguments.h"
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

// Returns the full name of the first section's key with this name; empty if there is none.
std::string full_name_elsewhere(const std::string& name) {
  for (const Section& section : run_file_sections()) {
    if (find_key(section.name, name) != nullptr) return section.name + "." + name;
  }
  return "";
}

// Returns the key that Axolotl, TRL, LLaMA-Factory, PEFT or DeepSpeed calls by this name; empty if
// there is none.
std::string key_of_other_trainers(const std::string& name) {
  const OtherKey* const found = find_other_key(name);
  return found == nullptr ? "" : std::string(found->key);
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : ", did you mean '" + name + "'?";
}

// Returns ": " and the reason why Longshore has no such key of another trainer, or "".
std::string reason_without(const std::string& name) {
  const OtherKey* const found = find_other_key(name);
  return found == nullptr || found->why.empty() ? "" : ": " + std::string(found->why);
}

std::string unknown_section(const std::string& name) {
  const std::vector<std::string> names = section_names();
  const bool lora = name == "lora" || name == "qlora" || name == "dora" || name == "peft";
  return "unknown section '" + printable(name) + "'" +
         did_you_mean(lora ? "adapter" : nearest_name(name, names)) + " (longshore config keys)";
}

std::string unknown_key(const Section& section, const std::string& name) {
  std::string meant = key_of_other_trainers(name);
  if (meant.empty()) meant = nearest_name(name, key_names(section));
  if (meant.empty()) meant = full_name_elsewhere(name);
  const std::string reason = meant.empty() ? reason_without(name) : "";
  return "unknown key '" + section.name + "." + printable(name) + "'" + did_you_mean(meant) +
         reason + " (longshore config keys " + section.name + ")";
}

// Loader collects the values of files and overrides, with all problems.
class Loader {
 public:
  // The directory of a run means the configuration that the run recorded.
  void read_file(const std::string& given) {
    const std::string file = run_file_at(given);
    const std::string origin = file == "-" ? "stdin" : file;
    if (places_.run_file.empty()) places_.run_file = origin;
    if (file == "-" && stdin_read_) {
      problems_.push_back("stdin: standard input is given twice");
      return;
    }
    stdin_read_ = stdin_read_ || file == "-";
    if (const std::string wrong = file == "-" ? "" : why_no_run_file(file); !wrong.empty()) {
      problems_.push_back(wrong);
      unreadable_ = true;
      return;
    }
    try {
      for (const TomlMember& member : parse_toml(text_of(file), origin)) read_section(member);
    } catch (const Error& error) {
      problems_.push_back(error.what());
      unreadable_ = true;
    }
  }

  void read_override(const Override& said) {
    const SourceLocation place{"--" + printable(said.key), 0, 0};
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
    if (first_invalid_utf8(said.value)) {
      problems_.push_back(place.text() + ": the value is not UTF-8: '" + printable(said.value) +
                          "'");
      places_.wrong.insert(key->full_name());
      return;
    }
    set(*key, override_value(*key, said.value, place));
    given_.insert(key->full_name());
  }

  CheckedConfig finish(const LoadOptions& options) {
    displace_rivals();
    if (options.complete) set_beside_path();
    if (options.complete && !unreadable_) {
      if (places_.run_file.empty()) places_.run_file = "command line";
      for (std::string& problem : broken_rules(config_, places_, options)) {
        problems_.push_back(std::move(problem));
      }
    }
    return {std::move(config_), std::move(problems_)};
  }

 private:
  static std::string text_of(const std::string& file) {
    try {
      if (file == "-") return read_to_end(duplicate_stdin(), kMaxRunFile);
      return read_input(file, kMaxRunFile);
    } catch (const IoError& error) {
      std::error_code ignored;
      const std::string tried = std::filesystem::absolute(file, ignored).string();
      const std::string where = ignored || tried == file || file == "-" ? "" : " (" + tried + ")";
      throw ConfigError(std::string(error.what()) + where);
    }
  }

  // If one of two exclusive keys is on the command line, it removes the other one from the files.
  void displace_rivals() {
    for (const std::string& kept : given_) {
      const std::string gone(rival_of(kept));
      const Key& key = key_named(kept);
      if (gone.empty() || given_.contains(gone) || key.get(config_) == key.default_value())
        continue;
      const Key& rival = key_named(gone);
      rival.set(config_, rival.default_value());
      places_.said.erase(gone);
    }
  }

  // adapter_config.json has the settings of an adapter that the run starts from, so the keys that
  // it replaces keep their defaults.
  void set_beside_path() {
    AdapterSection& adapter = config_.adapter;
    if (!adapter.on() || adapter.is_new()) return;
    for (const Key& key : find_section("adapter")->keys) {
      const std::string name = key.full_name();
      const auto said = places_.said.find(name);
      const bool replaced =
          key.name != "kind" && key.name != "base" && key.name != "path" && key.name != "any_base";
      if (!replaced || said == places_.said.end() || places_.wrong.contains(name)) continue;
      const KeyValue value = key.get(config_);
      if (!given_.contains(name) && value == key.default_value()) continue;
      adapter.beside_path.push_back({name, toml_text(key, value), said->second.text(),
                                     given_.contains("adapter.path") && !given_.contains(name)});
      key.set(config_, key.default_value());
    }
  }

  // Parses the text as TOML. It stays a plain string if it is no TOML or if the key needs a string,
  // because dates and numbers may be directory names.
  static TomlValue override_value(const Key& key, const std::string& text,
                                  const SourceLocation& place) {
    const bool wants_string = key.type == KeyType::kPath || key.type == KeyType::kChoice ||
                              key.type == KeyType::kBytes || key.type == KeyType::kDuration ||
                              key.type == KeyType::kString;
    const bool wants_list = key.type == KeyType::kPaths || key.type == KeyType::kStrings;
    std::optional<TomlValue> value = parse_toml_value(text, place);
    if (value && wants_list && value->kind == TomlValue::Kind::kArray) return *value;
    if (value && !wants_list && (!wants_string || value->kind == TomlValue::Kind::kString)) {
      return *value;
    }
    TomlValue string;
    string.kind = TomlValue::Kind::kString;
    string.string = value && value->kind == TomlValue::Kind::kString ? value->string : text;
    string.place = place;
    if (!wants_list) return string;
    TomlValue list;  // with one element
    list.kind = TomlValue::Kind::kArray;
    list.place = place;
    list.elements.push_back(std::move(string));
    return list;
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
    return "key '" + printable(member.name) + "' stands outside of a section" +
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
  std::set<std::string> given_;  // keys set on the command line
  std::vector<std::string> problems_;
  bool stdin_read_ = false;
  bool unreadable_ = false;  // a file is incomplete, so missing keys are not reported
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

std::string_view rival_of(std::string_view key) {
  constexpr std::array<std::array<std::string_view, 2>, 3> kRivals = {
      {{"train.steps", "train.epochs"},
       {"eval.split", "data.eval"},
       {"schedule.warmup_steps", "schedule.warmup_ratio"}}};
  for (const auto& [one, other] : kRivals) {
    if (key == one) return other;
    if (key == other) return one;
  }
  return "";
}

std::string advice_for_option(const std::string& name) {
  std::string key = key_of_other_trainers(name);
  if (key.empty()) key = full_name_elsewhere(name);
  return key.empty() ? reason_without(name) : ", did you mean --" + key + "=VALUE?";
}

CheckedConfig check_run_config(const std::vector<std::string>& files,
                               const std::vector<Override>& overrides, const LoadOptions& options) {
  Loader loader;
  for (const std::string& file : files) loader.read_file(file);
  for (const Override& said : overrides) loader.read_override(said);
  return loader.finish(options);
}

RunConfig load_run_config(const std::vector<std::string>& files,
                          const std::vector<Override>& overrides, const LoadOptions& options) {
  CheckedConfig checked = check_run_config(files, overrides, options);
  if (!checked.problems.empty()) throw ConfigError(std::move(checked.problems));
  return std::move(checked.config);
}

int64_t ScheduleSection::warmup_in(int64_t total_steps) const {
  const double part = std::ceil(warmup_ratio * static_cast<double>(total_steps));
  return std::min(warmup_ratio > 0.0 ? static_cast<int64_t>(part) : warmup_steps, total_steps);
}

std::string to_toml(const RunConfig& config) {
  return toml_of(config, false);
}

std::string changed_keys(const RunConfig& config) {
  return toml_of(config, true);
}

}  // namespace longshore
