// RowChecks: what the formats of rows have in common when they look into a row. Internal to
// src/data. Plain functions, any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/row_format.h"

namespace longshore {

// "null", "a string", "an array".
std::string article_and_type(const Json& value);
// The names of a row's first members, for error texts.
std::string keys_of(const Json& row);
// "messages[2]".
std::string place_of(std::string_view name, size_t index);
void require_object(const Json& row);
// RowProblem naming the keys that are there instead.
const Json& required_member(const Json& row, const std::string& key);
// The member's text; RowProblem where it is no string, empty (unless that is allowed) or holds a
// NUL.
const std::string& required_text(const Json& value, const std::string& place,
                                 bool may_be_empty = false);
// Notes the members of an object that are not among those `read`, as `prefix` and their names; null
// is no member.
void note_unread(const Json& object, const std::vector<std::string>& read,
                 const std::string& prefix, RowNotes* notes);
// RowProblem for ids that the model does not have.
void check_ids_of_text(std::span<const TokenId> ids, const RowFormatOptions& options);

}  // namespace longshore
