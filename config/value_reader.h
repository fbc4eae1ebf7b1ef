// Converts TOML values to values of keys, checked against the key's row of the table, and
// optimizer.groups to a list of groups. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "config/field_table.h"
#include "config/toml_document.h"

namespace longshore {

// read_key_value: converts a TOML value to the type of the key and checks the key's bounds.

// ReadValue is a value within the key's bounds, or a problem.
struct ReadValue {
  KeyValue value;
  std::string problem;  // without location; empty if there is none
};

ReadValue read_key_value(const Key& key, const TomlValue& value);

// Parsing and formatting of optimizer.groups. Pure functions.

// Reads an array of tables, or returns the problem and its location.
ReadValue read_groups(const Key& key, const TomlValue& value);

// Formats `[{ parameters = ["*.bias"], weight_decay = 0.0 }]`.
std::string groups_text(const std::vector<ParameterGroup>& groups);

}  // namespace longshore
