// ValueReader: from a TOML value to the value of a key, by the key's row of the table. Pure
// function, any thread.
#pragma once

#include <string>

#include "config/field_table.h"
#include "config/toml_document.h"

namespace longshore {

// Either a value within the key's bounds, or what is wrong with it.
struct ReadValue {
  KeyValue value;
  std::string problem;  // without place; empty when there is none
};

ReadValue read_key_value(const Key& key, const TomlValue& value);

}  // namespace longshore
