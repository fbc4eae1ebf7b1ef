// BytesApart: two sizes as texts that differ where the sizes do. Pure function.
#pragma once

#include <string>
#include <utility>

#include "base/bytes.h"

namespace longshore {

// As format_bytes, with as many decimals as it takes to tell them apart: "6.002 MiB", "6.000 MiB".
std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b);

}  // namespace longshore
