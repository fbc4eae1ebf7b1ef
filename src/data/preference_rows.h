// PreferenceRows: the row formats with answers that people judged: pairs of a chosen and a rejected
// one, and single answers with a label. Internal to src/data; the formats are immutable, any
// thread.
#pragma once

#include <memory>

#include "data/row_format.h"

namespace longshore {

// Returns true if the row has a chosen and a rejected answer, as texts, messages or token ids.
bool holds_pair(const Json& row, const RowFormatOptions& options);

// Returns true if the row has one answer with a label, as text, messages or token ids.
bool holds_judged_answer(const Json& row, const RowFormatOptions& options);

// Every row gives a document for each answer, behind the prompt: with `paired` those of the chosen
// and of the rejected one. Throws DataError if data.mask selects other tokens than the answers'.
std::unique_ptr<RowFormat> make_preference_format(const RowFormatOptions& options, bool paired);

}  // namespace longshore
