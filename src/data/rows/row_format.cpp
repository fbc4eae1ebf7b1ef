#include "data/rows/row_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "data/rows/chat_rows.h"
#include "data/rows/row_block.h"
#include "data/sources/row_source.h"
#include "data/tokens/dataset.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

// The mask selects answers, but the row has none. Training all of it would ignore the mask.
void refuse_mask_without_answers(const RowFormatOptions& options) {
  if (options.mask == DataSection::Mask::kAuto || options.mask == DataSection::Mask::kAll) return;
  throw RowProblem(
      "data.mask asks for answers only, but this row does not say what is an answer; set data.mask "
      "to \"auto\" or \"all\"");
}

void require_tokenizer(const RowFormatOptions& options, const std::string& format) {
  if (options.tokenizer == nullptr) {
    throw DataError("data.format = \"" + format +
                    "\" needs the model's tokenizer.json, and there is none");
  }
  const bool writes_eos = format != "messages";
  if (writes_eos && options.add_eos && !options.tokenizer->eos()) {
    throw DataError(
        "the tokenizer names no eos token to end documents with; give tokenizer_config.json an "
        "eos_token, or set data.add_eos = false");
  }
}

// Padding is refused in files, because it would be trained or waste compute.
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

// Counts the special tokens that a text spells, or refuses them. Returns true if it has any.
bool note_special_tokens(std::string_view text, const std::string& place,
                         const RowFormatOptions& options, RowNotes* notes) {
  const std::vector<TextSpan> spans = special_tokens_of(*options.tokenizer, text);
  if (spans.empty()) return false;
  if (options.special_tokens == DataSection::SpecialTokens::kError) {
    const TextSpan& first = spans.front();
    throw RowProblem(
        place + ": the text spells the special token " +
        printable(text.substr(first.begin, first.end - first.begin), kMaxNameBytes) +
        "; remove it, or set data.special_tokens to \"text\" (it is read as ordinary text) or "
        "\"keep\" (it is the token)");
  }
  if (notes != nullptr) notes->special_tokens += static_cast<int64_t>(spans.size());
  return true;
}

class TokensFormat : public RowFormat {
 public:
  TokensFormat(const RowFormatOptions& options, DataSection::Format format)
      : options_(options), format_(format) {}
  std::string_view name() const override { return name_of(format_); }

  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    const std::string key = options_.name_of("weights");
    Document document = read_tokens(row, {key, options_.name_of("weight")}, notes);
    if (const auto weights = row.find(key); weights != row.end()) {
      document.columns[kWeightColumn] = read_numbers(*weights, key, document, true);
    }
    return with_row_weight(row, options_, {std::move(document)});
  }

 protected:
  // Reads ids and labels. `others` are members that the format reads beside them.
  Document read_tokens(const Json& row, std::vector<std::string> others, RowNotes* notes) const {
    Document document;
    const std::string key = options_.name_of("input_ids");
    others.insert(others.end(), {key, options_.name_of("labels"), "attention_mask"});
    note_unread(row, others, "", notes);
    document.tokens = read_ids(required_member(row, key), key, options_.model_vocabulary_size);
    if (document.tokens.empty()) throw RowProblem(key + ": the array is empty");
    refuse_padding(row);
    read_labels(row, document);
    return document;
  }

  RowFormatOptions options_;

 private:
  void read_labels(const Json& row, Document& document) const {
    const auto labels = row.find(options_.name_of("labels"));
    if (labels == row.end() || labels->is_null()) {
      refuse_mask_without_answers(options_);
      document.labels = document.tokens;
      return;
    }
    document.labels =
        read_ids(*labels, options_.name_of("labels"), options_.model_vocabulary_size, true);
    if (document.labels.size() != document.tokens.size()) {
      throw RowProblem("labels: " + std::to_string(document.labels.size()) + " of them for " +
                       std::to_string(document.tokens.size()) + " input_ids");
    }
  }

  DataSection::Format format_;
};

// Rows of tokens with the log-probabilities that they had when a policy wrote them, and advantages.
class PolicyFormat : public TokensFormat {
 public:
  using TokensFormat::TokensFormat;

  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    Document document =
        read_tokens(row, members_of(std::array{kAdvantageColumn, kOldLogpColumn}, options_), notes);
    read_column(row, kOldLogpColumn, options_, document);
    if (std::ranges::any_of(document.columns[kOldLogpColumn], [](float p) { return p > 0.0f; })) {
      throw RowProblem(options_.name_of("old_logps") +
                       ": holds a number above 0, which is no log-probability");
    }
    read_column(row, kAdvantageColumn, options_, document);
    return {std::move(document)};
  }
};

class TextFormat : public RowFormat {
 public:
  explicit TextFormat(const RowFormatOptions& options) : options_(options) {}
  std::string_view name() const override { return "text"; }

  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    const std::string key = options_.name_of("text");
    if (notes != nullptr && row.is_object() && row.contains(key) && is_text_of_messages(row[key])) {
      ++notes->json_texts;
    }
    note_unread(row, {key, options_.name_of("weight")}, "", notes);
    return with_row_weight(
        row, options_, {read_text(required_text(required_member(row, key), key), options_, notes)});
  }

 private:
  RowFormatOptions options_;
};

// Tokens with the weight 0 get no loss.
void leave_out_weightless(Document& document) {
  const std::vector<float>& weights = document.columns[kWeightColumn];
  for (size_t t = 1; t < weights.size(); ++t) {  // nothing predicts the first
    if (weights[t] == 0.0f) document.labels[t] = kNotTrained;
  }
}

// Rows of a format with the columns which the run's loss needs. Weights are applied last: arrays
// with an element for each token with a loss have those of tokens with the weight 0, too.
class TrainedRows : public RowFormat {
 public:
  TrainedRows(std::unique_ptr<RowFormat> format, const RowFormatOptions& options)
      : format_(std::move(format)), options_(options) {}
  std::string_view name() const override { return format_->name(); }
  bool gives_answers() const override { return format_->gives_answers(); }
  bool gives_pairs() const override { return format_->gives_pairs(); }

  std::vector<Document> read_row(const Json& row, RowNotes* notes) const override {
    std::vector<Document> documents = format_->read_row(row, notes);
    for (Document& document : documents) {
      for (const ColumnId column : options_.columns) {
        if (document.columns[column].empty()) read_column(row, column, options_, document);
      }
      leave_out_weightless(document);
    }
    for (const std::string& member : members_of(options_.columns, options_)) {
      if (notes != nullptr) notes->unread.erase(printable(member, kMaxNameBytes));
    }
    return documents;
  }

 private:
  std::unique_ptr<RowFormat> format_;
  RowFormatOptions options_;
};

constexpr size_t kMaxKeysShown = 6;

constexpr const char* kExpected =
    "; expected JSONL: an object such as {\"text\": \"...\"} per line";

// Returns the first line that is not blank; its number is 0 if there is none.
JsonlLine first_line(JsonlReader& reader) {
  JsonlLine line;
  while (reader.next(line)) {
    if (!line.blank() || line.too_long) return line;
  }
  return {};
}

bool looks_like_table(std::string_view line) {
  const auto separators = std::count_if(line.begin(), line.end(), [](char letter) {
    return letter == ',' || letter == '\t' || letter == ';';
  });
  return separators > 0 && line.find_first_of("{}[]") == std::string_view::npos;
}

}  // namespace

void stream_text(std::string_view text, const RowFormatOptions& options, RowNotes* notes,
                 const std::function<void(std::span<const TokenId>)>& use) {
  if (text.empty()) throw RowProblem("text: the string is empty");
  if (text.find('\0') != std::string_view::npos) throw RowProblem("text: holds a NUL character");
  refuse_mask_without_answers(options);
  note_special_tokens(text, "text", options, notes);
  const bool as_text = options.special_tokens == DataSection::SpecialTokens::kText;
  std::optional<TokenId> last;
  const auto take = [&](std::span<const TokenId> ids) {
    check_ids_of_text(ids, options);
    if (!last && begins_twice(ids, *options.tokenizer)) ids = ids.subspan(1);
    if (!ids.empty()) last = ids.back();
    use(ids);
  };
  try {
    options.tokenizer->encode_pieces(text, SpecialTokens::kAdd, take,
                                     as_text ? SpelledTokens::kText : SpelledTokens::kTokens);
  } catch (const DataError& error) {
    throw RowProblem(error.what());
  }
  if (!options.add_eos) return;
  const TokenId eos = options.tokenizer->eos().value();
  if (last != eos) take(std::span(&eos, 1));
}

Document read_text(std::string_view text, const RowFormatOptions& options, RowNotes* notes) {
  Document document;
  stream_text(text, options, notes, [&document](std::span<const TokenId> ids) {
    document.tokens.insert(document.tokens.end(), ids.begin(), ids.end());
  });
  document.labels = document.tokens;
  if (options.keep_text) document.text = text;
  return document;
}

void RowNotes::add_border(std::string_view piece) {
  constexpr size_t kMostBytes = 40;
  ++merged_borders;
  if (border_piece.empty()) border_piece = printable(piece, kMostBytes);
}

std::string RowFormatOptions::name_of(const std::string& member) const {
  const auto renamed = keys.find(member);
  return renamed == keys.end() ? member : renamed->second;
}

namespace {

// Returns what to do about a row that is no row but a file's rows, or one of a row's messages.
std::string help_for(const Json& row) {
  if (row.contains("role") && row.contains("content")) {
    return "; this is one message: a row has its messages in a list, {\"messages\": [...]}";
  }
  for (const auto& [name, value] : row.items()) {
    if (!value.is_array() || value.empty() || !value.front().is_object()) continue;
    const std::string shown = printable(name, kMaxNameBytes);
    return "; the rows lie in its member \"" + shown + "\": write them so once: jq -c '." + shown +
           "[]' FILE > rows.jsonl";
  }
  return "; data.keys gives keys other names";
}

// Returns the format without the columns of a loss, and with the loss of tokens of weight 0.
std::unique_ptr<RowFormat> make_plain_format(DataSection::Format format,
                                             const RowFormatOptions& options) {
  switch (format) {
    case DataSection::Format::kText:
      require_tokenizer(options, "text");
      return std::make_unique<TextFormat>(options);
    case DataSection::Format::kTokens:
    case DataSection::Format::kDistill:  // with the columns of a teacher
      return std::make_unique<TokensFormat>(options, format);
    case DataSection::Format::kPolicy:
      return std::make_unique<PolicyFormat>(options, format);
    case DataSection::Format::kPromptCompletion:
      require_tokenizer(options, "prompt-completion");
      return make_prompt_format(options);
    case DataSection::Format::kMessages:
      require_tokenizer(options, "messages");
      return make_messages_format(options);
    case DataSection::Format::kPreference:
    case DataSection::Format::kUnpaired:
      return make_preference_format(options, format == DataSection::Format::kPreference);
    case DataSection::Format::kAuto:
      break;
  }
  throw CheckFailure("internal error: no row format");
}

}  // namespace

std::unique_ptr<RowFormat> make_row_format(DataSection::Format format,
                                           const RowFormatOptions& options) {
  LONGSHORE_CHECK(options.model_vocabulary_size > 0) << options.model_vocabulary_size;
  RowFormatOptions all = options;
  if (format == DataSection::Format::kDistill) {
    all.columns.insert(all.columns.end(), {kTeacherIdColumn, kTeacherLogpColumn});
  }
  return std::make_unique<TrainedRows>(make_plain_format(format, options), all);
}

DataSection::Format detect_format(const Json& given, const RowFormatOptions& options) {
  require_object(given);
  const std::optional<Json> parsed = with_parsed_messages(given, options, nullptr);
  const Json& row = parsed ? *parsed : given;
  const auto has = [&](const char* member) { return row.contains(options.name_of(member)); };
  if (has("input_ids")) {
    if (has("teacher_logps")) return DataSection::Format::kDistill;
    return has("old_logps") ? DataSection::Format::kPolicy : DataSection::Format::kTokens;
  }
  if (holds_pair(row, options)) return DataSection::Format::kPreference;
  if (holds_judged_answer(row, options)) return DataSection::Format::kUnpaired;
  if (row.contains(name_of_messages(row, options))) return DataSection::Format::kMessages;
  if (has("prompt") && (has("completion") || row.contains("response") || row.contains("chosen"))) {
    return DataSection::Format::kPromptCompletion;
  }
  if (row.contains("instruction") && (row.contains("output") || row.contains("response"))) {
    return DataSection::Format::kPromptCompletion;
  }
  if (has("text")) return DataSection::Format::kText;
  throw RowProblem(
      "no known format: expected a key \"text\", \"messages\", \"conversations\", \"input_ids\", "
      "\"prompt\" with \"completion\", \"instruction\" with \"output\", or \"chosen\" with "
      "\"rejected\", found " +
      keys_of(row) + help_for(row));
}

std::string_view name_of(DataSection::Format format) {
  switch (format) {
    case DataSection::Format::kAuto:
      return "auto";
    case DataSection::Format::kText:
      return "text";
    case DataSection::Format::kTokens:
      return "tokens";
    case DataSection::Format::kPromptCompletion:
      return "prompt-completion";
    case DataSection::Format::kMessages:
      return "messages";
    case DataSection::Format::kPreference:
      return "preference";
    case DataSection::Format::kUnpaired:
      return "unpaired-preference";
    case DataSection::Format::kPolicy:
      return "policy";
    case DataSection::Format::kDistill:
      return "distill";
  }
  return "?";
}

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
  if (value.is_binary()) return "an integer outside 64 bits";
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

float read_number(const Json& value, const std::string& place, bool not_negative) {
  if (!value.is_number()) {
    throw RowProblem(place + ": expected a number, found " + article_and_type(value));
  }
  const auto number = value.get<double>();
  if (!(std::abs(number) <= std::numeric_limits<float>::max())) {
    throw RowProblem(place + ": " + value.dump() + " is no finite number of 32 bits");
  }
  if (not_negative && number < 0.0) {
    throw RowProblem(place + ": " + value.dump() + " is negative; expected 0 or more");
  }
  return static_cast<float>(number);
}

std::vector<Document> with_row_weight(const Json& row, const RowFormatOptions& options,
                                      std::vector<Document> documents) {
  const std::string key = options.name_of("weight");
  const auto member = row.find(key);
  if (member == row.end()) return documents;
  const float weight = read_number(*member, key, /*not_negative=*/true);
  if (weight == 0.0f) return {};
  for (Document& document : documents) {
    std::vector<float>& weights = document.columns[kWeightColumn];
    if (weights.empty()) weights.assign(document.tokens.size(), 1.0f);
    for (float& of_token : weights) {
      of_token *= weight;
      if (!std::isfinite(of_token)) {
        throw RowProblem(key + ": its product with the weight of a token is no finite number");
      }
    }
  }
  return documents;
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

bool begins_twice(std::span<const TokenId> ids, const Tokenizer& tokenizer) {
  if (ids.size() < 2 || ids[0] != ids[1]) return false;
  if (ids[0] == tokenizer.bos()) return true;
  // The tokenizer may add a token that no configuration names.
  const std::vector<TokenId> added = tokenizer.encode("a", SpecialTokens::kAdd);
  const std::vector<TokenId> plain = tokenizer.encode("a", SpecialTokens::kNone);
  return added.size() > plain.size() && added[0] == ids[0] && (plain.empty() || plain[0] != ids[0]);
}

std::string row_text(std::string text, const std::string& place, const RowFormatOptions& options,
                     RowNotes* notes) {
  const bool as_text = options.special_tokens == DataSection::SpecialTokens::kText;
  if (as_text && !without_breaks(text).breaks.empty()) {
    throw RowProblem(place +
                     ": has the noncharacter U+FDDA; remove it, or set "
                     "data.special_tokens to \"keep\" or \"error\"");
  }
  if (!note_special_tokens(text, place, options, notes) || !as_text) return text;
  return with_breaks(*options.tokenizer, text);
}

EncodedText encode_row_text(std::string& text, const RowFormatOptions& options) {
  TextWithoutBreaks plain{std::move(text), {}};
  if (options.special_tokens == DataSection::SpecialTokens::kText) {
    plain = without_breaks(std::move(plain.text));
  }
  EncodedText encoded;
  try {
    encoded = plain.encode(*options.tokenizer, SpecialTokens::kAdd);
  } catch (const DataError& error) {
    throw RowProblem(error.what());
  }
  if (begins_twice(encoded.ids, *options.tokenizer)) {
    encoded.ids.erase(encoded.ids.begin());
    encoded.spans.erase(encoded.spans.begin());
  }
  text = std::move(plain.text);
  return encoded;
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

std::string unknown_kind(JsonlReader reader) {
  const JsonlLine line = first_line(reader);
  if (line.number == 0 || line.too_long) return {};
  const std::string place = reader.path() + ":" + std::to_string(line.number) + ": ";
  if (const auto bad = first_invalid_utf8(line.text)) {
    return place + "not UTF-8 at byte " + std::to_string(*bad) +
           " of the line; convert the file to UTF-8";
  }
  const std::string_view text = line.text.substr(line.text.find_first_not_of(" \t\r"));
  if (text == "{") {
    return place + "an object over several lines" + kExpected +
           "; write it so once: jq -c . FILE > rows.jsonl (jq -c '.NAME[]' if the rows lie in its "
           "member NAME)";
  }
  if (looks_like_table(text)) {
    return place + "the file looks like a table (CSV)" + kExpected +
           "; write it so once: datasets.Dataset.from_csv(FILE).to_json(\"rows.jsonl\")";
  }
  if (text.starts_with('[')) {
    return place + "the row is a list, but a row is an object; a list of messages is a row as " +
           "{\"messages\": [...]}";
  }
  if (!text.starts_with('{')) {
    return place + "the line is no JSON object" + kExpected +
           "; a file of plain text is read as one document where its name ends in .txt";
  }
  return {};
}

void refuse_unknown_format(const std::string& path, const RowFormatOptions& options) {
  const std::string kind = unknown_kind(JsonlReader(path));
  if (!kind.empty()) throw DataError(kind);
  JsonlReader reader(path);
  const JsonlLine line = first_line(reader);
  if (line.number == 0) throw DataError(path + ": holds no rows");
  try {
    detect_format(parse_row(line.text, line.too_long, line.ended), options);
  } catch (const RowProblem& problem) {
    throw DataError(path + ":" + std::to_string(line.number) + ": " + problem.what());
  }
  throw DataError(path + ": no row shows a known format");
}

}  // namespace longshore
