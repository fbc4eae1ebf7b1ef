// ConfigDtype: the type that a config.json names ("torch_dtype", newer "dtype"). Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/json.h"

namespace longshore {

// Returns "float32", "bfloat16" or "float16".
std::string_view config_name_of(DType dtype);

// Returns nullopt if the key is absent, null, "auto" or names another type. A key in text_config
// counts if the outer one is absent.
std::optional<DType> config_dtype(const Json& config);

// Returns `text` (a valid config.json) with the type's name replaced at the top and in text_config.
// All other bytes stay, and absent keys stay absent.
std::string with_config_dtype(const std::string& text, DType dtype);

}  // namespace longshore
