// PythonNumbers: converts JSON in Python's dialect to strict JSON. Pure function, any thread.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// Published configuration files hold numbers that JSON or 64 bits cannot: 10^30 for "no limit",
// NaN, Infinity, 1e400. Writes such integers as reals and non-finite reals as strings; a reader
// that needs the number then refuses the string by name. All other text stays unchanged.
std::string python_numbers(std::string_view text);

}  // namespace longshore
