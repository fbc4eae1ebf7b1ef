// The table of the run file's keys: name, type, default, unit, bounds, choices and
// description, each bound to its member of RunConfig. Parser, help, reference file, documentation
// and schema use it. Constructed once, then read-only from any thread.
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
  kIntegers,
  kString,
  kPath,  // a string; "~" is expanded
  kPaths,
  kStrings,
  kBytes,     // a string such as "24GiB"
  kDuration,  // a string such as "10m"; the value is in milliseconds
  kChoice,    // one of the key's strings
  kTable,     // names with plain values
  kPatterns,  // patterns in quotes with numbers, in the order of the text
  kUnits,     // a string such as "block", or a table with one member
  kGroups,    // an array of tables (value_reader.h)
};

// The value "auto", which the plan resolves later.
struct AutoValue {
  bool operator==(const AutoValue&) const = default;
};

// int64_t holds integers, bytes and durations; std::string holds paths and choices; a table is a
// list of "name = value" with values in JSON's spelling.
using KeyValue =
    std::variant<AutoValue, bool, int64_t, double, std::array<double, 2>, std::vector<double>,
                 std::string, std::vector<std::string>, UnitsChoice, std::vector<ParameterGroup>,
                 std::vector<PatternNumber>, std::vector<int64_t>>;

// Bounds of a number, or of each number in a list or table of patterns.
struct Bounds {
  std::optional<double> min = {};
  std::optional<double> max = {};
  bool min_excluded = false;
  bool max_excluded = false;

  bool contain(double number) const;
  // Returns "at least 0", "from 0 to 8", "above 0 and below 1"; empty without bounds.
  std::string text() const;
};

struct Key {
  std::string section;
  std::string name;
  KeyType type = KeyType::kBool;
  std::string description;
  Bounds bounds;
  std::string unit;                  // "steps"; may be empty
  std::vector<std::string> choices;  // values of kChoice
  bool allows_auto = false;          // a number or size that may be "auto"
  std::string example;               // a TOML value; set only for required keys

  std::function<KeyValue(const RunConfig&)> get;
  std::function<void(RunConfig&, const KeyValue&)> set;

  std::string full_name() const { return section + "." + name; }
  bool required() const { return !example.empty(); }
  // Returns "integer (steps)", "size or \"auto\"", "\"fp32\" or \"split\"".
  std::string type_text() const;
  KeyValue default_value() const { return get(RunConfig{}); }
};

struct Section {
  std::string name;
  std::string description;
  std::vector<Key> keys;
};

// Returns the sections in the order of the run file.
const std::vector<Section>& run_file_sections();

const Section* find_section(std::string_view name);
const Key* find_key(std::string_view section, std::string_view name);
// Returns the key named "offload.threads"; CheckFailure for an unknown name.
const Key& key_named(std::string_view full_name);

// Returns the value as TOML, as it follows "=" in a run file.
std::string toml_text(const Key& key, const KeyValue& value);
// Returns the shortest TOML real that parses to the same number.
std::string real_text(double number);

}  // namespace longshore
