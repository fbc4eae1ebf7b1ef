// ValueReader: converts a TOML value to a key's value with the key's row. Pure function; any
// thread.
#pragma once

#include <string>

#include "config/field_table.h"
#include "config/toml_document.h"

namespace longshore {

// ReadValue is a value within the key's bounds, or a problem.
struct ReadValue {
  KeyValue value;
  std::string problem;  // without location; empty if there is none
};

ReadValue read_key_value(const Key& key, const TomlValue& value);

}  // namespace longshore
