// FileKind: what a data file is that holds no rows as they are expected. Internal to src/data and
// to who shows rows. Plain function, any thread.
#pragma once

#include <string>

#include "data/row_format.h"

namespace longshore {

// Says what the first rows of a file without a known format are, what is expected, and what to do.
// Nothing where the file seems to hold rows, each with a problem of its own.
std::string unknown_kind(const std::string& path);

// DataError for a file none of whose rows shows a format.
[[noreturn]] void refuse_unknown_format(const std::string& path, const RowFormatOptions& options);

}  // namespace longshore
