// RowSource: the rows of a data file as lines of JSON, in bounded memory: JSONL as it is, the
// elements of a JSON array, or a table's rows (Parquet). One owner thread.
#pragma once

#include <memory>
#include <string>

#include "data/byte_source.h"

namespace longshore {

// What the file is tell its first bytes. The n-th line is the n-th element or row; in a table's
// rows a member that is null is left out, as no table tells null from nothing. DataError as
// open_byte_source, and, also while reading, for arrays and tables that are damaged or cut off.
std::unique_ptr<ByteSource> open_row_source(const std::string& path);

}  // namespace longshore
