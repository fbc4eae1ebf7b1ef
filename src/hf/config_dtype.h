// The element type that a config.json names ("torch_dtype", in newer files "dtype"). Pure
// functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/json.h"

namespace longshore {

// "float32", "bfloat16", "float16".
std::string_view config_name_of(DType dtype);

// nullopt when the key is absent, null, "auto" or names another type. A text_config's key counts
// when the outer one is absent.
std::optional<DType> config_dtype(const Json& config);

// `text`, a config.json, with the type's name replaced at the top and in text_config; every other
// byte stays. It must be valid JSON. A key that is absent stays absent.
std::string with_config_dtype(const std::string& text, DType dtype);

}  // namespace longshore
