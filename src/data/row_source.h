// RowSource: reads a data file's rows as lines of JSON, in bounded memory. JSONL stays unchanged;
// elements of a JSON array and rows of a table (Parquet) become lines. One owner thread.
#pragma once

#include <memory>
#include <string>

#include "data/byte_source.h"

namespace longshore {

// The first bytes of the file tell its kind. Line n is element or row n. Null members of table rows
// are left out, since a table has every member in every row. Throws DataError as open_byte_source
// does, and (also while reading) if an array or table is damaged or cut off.
std::unique_ptr<ByteSource> open_row_source(const std::string& path);

}  // namespace longshore
