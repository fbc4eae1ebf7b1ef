// GroupReader: parses and formats optimizer.groups of the run file. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "config/field_table.h"
#include "config/toml_document.h"
#include "config/value_reader.h"

namespace longshore {

// Reads an array of tables, or returns the problem and its location.
ReadValue read_groups(const Key& key, const TomlValue& value);

// Formats `[{ parameters = ["*.bias"], weight_decay = 0.0 }]`.
std::string groups_text(const std::vector<ParameterGroup>& groups);

}  // namespace longshore
