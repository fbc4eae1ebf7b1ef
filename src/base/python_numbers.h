// PythonNumbers: JSON as Python writes and reads it. Pure function, any thread.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// Published configuration files hold numbers that JSON or 64 bits do not: 10^30 for "no limit",
// NaN, Infinity, 1e400. The same text with such integers as reals, and with reals that are not
// finite as strings, which a reader who needs the number refuses by name. Other texts are returned
// as they are, right or wrong.
std::string python_numbers(std::string_view text);

}  // namespace longshore
