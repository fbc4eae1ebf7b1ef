#include "data/row_format.h"

#include "base/errors.h"
#include "data/dataset.h"

namespace longshore {
namespace {

constexpr size_t kMaxKeysShown = 6;

std::string keys_of(const Json& row) {
  std::string keys;
  size_t shown = 0;
  for (const auto& [key, value] : row.items()) {
    if (shown++ == kMaxKeysShown) return keys + ", ...";
    keys += (keys.empty() ? "" : ", ") + key.substr(0, 40);
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

std::string place_of(const std::string& key, size_t index) {
  return key + "[" + std::to_string(index) + "]";
}

// An array of token ids; `kNotTrained` passes too where it is allowed.
std::vector<TokenId> read_ids(const Json& value, const std::string& key, int64_t vocabulary_size,
                              bool may_be_untrained) {
  if (!value.is_array()) {
    throw RowProblem(key + ": expected an array of integers, found " + article_and_type(value));
  }
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (const Json& element : value) {
    if (!element.is_number_integer()) {
      throw RowProblem(place_of(key, ids.size()) + ": expected an integer, found " +
                       article_and_type(element));
    }
    const bool fits = !element.is_number_unsigned() ||
                      element.get<uint64_t>() < static_cast<uint64_t>(vocabulary_size);
    const int64_t id = fits ? element.get<int64_t>() : vocabulary_size;
    const bool untrained = may_be_untrained && id == kNotTrained;
    if (!untrained && (id < 0 || id >= vocabulary_size)) {
      throw RowProblem(place_of(key, ids.size()) + ": " + element.dump() +
                       " is no token of the model, whose vocabulary has " +
                       std::to_string(vocabulary_size));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

// Padding is for batches, not for files: it would be trained on, or waste work.
void refuse_padding(const Json& row) {
  const auto mask = row.find("attention_mask");
  if (mask == row.end() || !mask->is_array()) return;
  for (size_t i = 0; i < mask->size(); ++i) {
    if ((*mask)[i] == 0) {
      throw RowProblem(place_of("attention_mask", i) +
                       ": the row holds padding; remove it from input_ids and labels");
    }
  }
}

class TokensFormat : public RowFormat {
 public:
  explicit TokensFormat(const RowFormatOptions& options) : options_(options) {}
  std::string_view name() const override { return "tokens"; }

  Document read_row(const Json& row) const override {
    Document document;
    document.tokens = read_ids(required_member(row, "input_ids"), "input_ids",
                               options_.model_vocabulary_size, false);
    if (document.tokens.empty()) throw RowProblem("input_ids: the array is empty");
    refuse_padding(row);
    const auto labels = row.find("labels");
    if (labels == row.end() || labels->is_null()) {
      document.labels = document.tokens;
      return document;
    }
    document.labels = read_ids(*labels, "labels", options_.model_vocabulary_size, true);
    if (document.labels.size() != document.tokens.size()) {
      throw RowProblem("labels: " + std::to_string(document.labels.size()) + " of them for " +
                       std::to_string(document.tokens.size()) + " input_ids");
    }
    return document;
  }

 private:
  RowFormatOptions options_;
};

class TextFormat : public RowFormat {
 public:
  explicit TextFormat(const RowFormatOptions& options) : options_(options) {}
  std::string_view name() const override { return "text"; }

  Document read_row(const Json& row) const override {
    const Json& text = required_member(row, "text");
    if (!text.is_string()) {
      throw RowProblem("text: expected a string, found " + article_and_type(text));
    }
    return read_text(text.get_ref<const std::string&>(), options_);
  }

 private:
  RowFormatOptions options_;
};

void require_text_tools(const RowFormatOptions& options) {
  if (options.tokenizer == nullptr) {
    throw DataError("data.format = \"text\" needs the model's tokenizer.json, and there is none");
  }
  if (options.add_eos && !options.tokenizer->eos()) {
    throw DataError(
        "the tokenizer names no eos token to end documents with; give tokenizer_config.json an "
        "eos_token, or set data.add_eos = false");
  }
}

void check_ids_of_text(const std::vector<TokenId>& ids, const RowFormatOptions& options) {
  for (const TokenId id : ids) {
    if (id < options.model_vocabulary_size) continue;
    throw RowProblem("the tokenizer gives token " + std::to_string(id) + " (" +
                     options.tokenizer->token_of(id).value_or("unknown") +
                     "), the model's vocabulary has only " +
                     std::to_string(options.model_vocabulary_size));
  }
}

}  // namespace

Document read_text(std::string_view text, const RowFormatOptions& options) {
  if (text.empty()) throw RowProblem("text: the string is empty");
  if (text.find('\0') != std::string_view::npos) throw RowProblem("text: holds a NUL character");
  Document document;
  try {
    document.tokens = options.tokenizer->encode(text, SpecialTokens::kAdd);
  } catch (const DataError& error) {
    throw RowProblem(error.what());
  }
  if (options.add_eos) {
    const TokenId eos = options.tokenizer->eos().value();
    if (document.tokens.empty() || document.tokens.back() != eos) document.tokens.push_back(eos);
  }
  check_ids_of_text(document.tokens, options);
  document.labels = document.tokens;
  return document;
}

std::unique_ptr<RowFormat> make_row_format(DataSection::Format format,
                                           const RowFormatOptions& options) {
  LONGSHORE_CHECK(options.model_vocabulary_size > 0) << options.model_vocabulary_size;
  switch (format) {
    case DataSection::Format::kText:
      require_text_tools(options);
      return std::make_unique<TextFormat>(options);
    case DataSection::Format::kTokens:
      return std::make_unique<TokensFormat>(options);
    case DataSection::Format::kAuto:
      break;
  }
  throw CheckFailure("internal error: no row format");
}

DataSection::Format detect_format(const Json& row) {
  require_object(row);
  if (row.contains("input_ids")) return DataSection::Format::kTokens;
  if (row.contains("text")) return DataSection::Format::kText;
  throw RowProblem("no known format: expected a key \"text\" or \"input_ids\", found " +
                   keys_of(row));
}

}  // namespace longshore
