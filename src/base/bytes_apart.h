// BytesApart: formats two sizes so that unequal sizes give unequal texts. Pure function.
#pragma once

#include <string>
#include <utility>

#include "base/bytes.h"

namespace longshore {

// Like format_bytes, with enough decimals to tell the two apart: "6.002 MiB", "6.000 MiB".
std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b);

}  // namespace longshore
