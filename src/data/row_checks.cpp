#include "data/row_checks.h"

#include <algorithm>

#include "base/texts.h"

namespace longshore {
namespace {

constexpr size_t kMaxKeysShown = 6;

}  // namespace

std::string keys_of(const Json& row) {
  std::string keys;
  size_t shown = 0;
  for (const auto& [key, value] : row.items()) {
    if (shown++ == kMaxKeysShown) return keys + ", ...";
    keys += (keys.empty() ? "" : ", ") + printable(key, kMaxNameBytes);
  }
  return keys.empty() ? "none" : keys;
}

std::string article_and_type(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "a boolean";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a real number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

void require_object(const Json& row) {
  if (!row.is_object()) throw RowProblem("expected an object, found " + article_and_type(row));
}

const Json& required_member(const Json& row, const std::string& key) {
  require_object(row);
  const auto member = row.find(key);
  if (member == row.end()) {
    throw RowProblem("expected a key \"" + key + "\", found " + keys_of(row));
  }
  return *member;
}

std::string place_of(std::string_view name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

const std::string& required_text(const Json& value, const std::string& place, bool may_be_empty) {
  if (!value.is_string()) {
    throw RowProblem(place + ": expected a string, found " + article_and_type(value));
  }
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty() && !may_be_empty) throw RowProblem(place + ": the string is empty");
  if (text.find('\0') != std::string::npos) throw RowProblem(place + ": holds a NUL character");
  return text;
}

void note_unread(const Json& object, const std::vector<std::string>& read,
                 const std::string& prefix, RowNotes* notes) {
  if (notes == nullptr || !object.is_object()) return;
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || std::ranges::find(read, name) != read.end()) continue;
    ++notes->unread[prefix + printable(name, kMaxNameBytes)];
  }
}

void check_ids_of_text(std::span<const TokenId> ids, const RowFormatOptions& options) {
  for (const TokenId id : ids) {
    if (id >= 0 && id < options.model_vocabulary_size) continue;
    throw RowProblem("the tokenizer gives token " + std::to_string(id) + " (" +
                     options.tokenizer->token_of(id).value_or("unknown") +
                     "), the model's vocabulary has only " +
                     std::to_string(options.model_vocabulary_size));
  }
}

}  // namespace longshore
