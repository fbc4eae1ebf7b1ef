// PreferenceRows: the row format with pairs of answers to one prompt. Internal to src/data; the
// format is immutable, any thread.
#pragma once

#include <memory>

#include "data/row_format.h"

namespace longshore {

// Returns true if the row has a chosen and a rejected answer, as texts, messages or token ids.
bool holds_pair(const Json& row, const RowFormatOptions& options);

// Every row gives two documents, the chosen answer's and the rejected one's, each behind the
// prompt. Throws DataError if data.mask selects other tokens than the answers'.
std::unique_ptr<RowFormat> make_preference_format(const RowFormatOptions& options);

}  // namespace longshore
