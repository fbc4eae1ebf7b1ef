// FileKind: describes a data file without rows of a known format, for error texts. Internal to
// src/data and to code that shows rows. Plain function, any thread.
#pragma once

#include <string>

#include "data/row_format.h"

namespace longshore {

// Describes the start of the file, the expected format, and the fix. Returns an empty string if the
// file seems to hold rows, each with a fault of its own.
std::string unknown_kind(const std::string& path);

// Throws DataError for a file without a row of a known format.
[[noreturn]] void refuse_unknown_format(const std::string& path, const RowFormatOptions& options);

}  // namespace longshore
