// RowChecks: checks that all row formats share. Internal to src/data. Plain functions, any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/row_format.h"

namespace longshore {

// The longest name or value in an error text or a report; printable() cuts the rest.
inline constexpr size_t kMaxNameBytes = 40;

// Returns "null", "a string", "an array" and so on.
std::string article_and_type(const Json& value);
// Returns the names of a row's first members, for error texts.
std::string keys_of(const Json& row);
// Returns a path such as "messages[2]".
std::string place_of(std::string_view name, size_t index);
void require_object(const Json& row);
// Returns the member, or throws RowProblem with the names of the members that exist.
const Json& required_member(const Json& row, const std::string& key);
// Returns the string. Throws RowProblem if it is no string, holds a NUL, or is empty without
// `may_be_empty`.
const std::string& required_text(const Json& value, const std::string& place,
                                 bool may_be_empty = false);
// Notes members of an object that are not in `read`, as `prefix` and name. Null members do not
// count.
void note_unread(const Json& object, const std::vector<std::string>& read,
                 const std::string& prefix, RowNotes* notes);
// Throws RowProblem if the model lacks an id.
void check_ids_of_text(std::span<const TokenId> ids, const RowFormatOptions& options);

}  // namespace longshore
