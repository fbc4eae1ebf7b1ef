// FieldTable: the one table of the run file's keys: name, type, default, unit, bounds, choices and
// a description, each bound to its member of RunConfig. Reader, help, reference file, documentation
// and schema come from it. Made once, then only read, from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace longshore {

enum class KeyType : uint8_t {
  kBool,
  kInteger,
  kReal,
  kRealPair,
  kReals,
  kString,
  kPath,  // a string; "~" is expanded
  kPaths,
  kStrings,
  kBytes,     // a string such as "24GiB"
  kDuration,  // a string such as "10m"; the value is in milliseconds
  kChoice,    // one of a few strings
  kTable,     // names and plain values
  kUnits,     // "block", or a table with one member that says otherwise
  kGroups,    // an array of tables; see group_reader.h
};

// The value "auto": decided later, by the plan.
struct AutoValue {
  bool operator==(const AutoValue&) const = default;
};

// Integers and bytes are int64_t; paths and choices are std::string; a table is a list of
// "name = value", its values spelled as in JSON.
using KeyValue =
    std::variant<AutoValue, bool, int64_t, double, std::array<double, 2>, std::vector<double>,
                 std::string, std::vector<std::string>, UnitsChoice, std::vector<ParameterGroup>>;

// Of a number, or of each number of a pair.
struct Bounds {
  std::optional<double> min = {};
  std::optional<double> max = {};
  bool min_excluded = false;
  bool max_excluded = false;

  bool contain(double number) const;
  // "at least 0", "from 0 to 8", "above 0 and below 1"; empty without bounds.
  std::string text() const;
};

struct Key {
  std::string section;
  std::string name;
  KeyType type = KeyType::kBool;
  std::string description;
  Bounds bounds;
  std::string unit;                  // "steps"; empty where there is none
  std::vector<std::string> choices;  // of kChoice
  bool allows_auto = false;          // numbers and bytes that may also be "auto"
  std::string example;               // TOML of a value; only a key that a run must set has one

  std::function<KeyValue(const RunConfig&)> get;
  std::function<void(RunConfig&, const KeyValue&)> set;

  std::string full_name() const { return section + "." + name; }
  bool required() const { return !example.empty(); }
  // "integer (steps)", "size or \"auto\"", "\"fp32\" or \"split\"".
  std::string type_text() const;
  KeyValue default_value() const { return get(RunConfig{}); }
};

struct Section {
  std::string name;
  std::string description;
  std::vector<Key> keys;
};

// In the order of the run file.
const std::vector<Section>& run_file_sections();

const Section* find_section(std::string_view name);
const Key* find_key(std::string_view section, std::string_view name);
// "offload.threads"; CheckFailure for an unknown name.
const Key& key_named(std::string_view full_name);

// The value as TOML: what follows "=" in a run file.
std::string toml_text(const Key& key, const KeyValue& value);
// The shortest text that reads back as the same number, spelled as a real of TOML.
std::string real_text(double number);

}  // namespace longshore
