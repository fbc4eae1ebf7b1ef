// GroupReader: optimizer.groups of the run file, from TOML and back. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "config/field_table.h"
#include "config/toml_document.h"
#include "config/value_reader.h"

namespace longshore {

// An array of tables, or what is wrong with it and where.
ReadValue read_groups(const Key& key, const TomlValue& value);

// `[{ parameters = ["*.bias"], weight_decay = 0.0 }]`.
std::string groups_text(const std::vector<ParameterGroup>& groups);

}  // namespace longshore
