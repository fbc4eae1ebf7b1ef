#include "data/rows/row_block.h"

#include <algorithm>
#include <span>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kBlockBytes = size_t{256} << 10;
constexpr size_t kBlockRows = 4096;

// Adds the columns of the next `tokens` ids: values of labels become those of targets. `columns`
// belong to a document whose tokens from `first` on these are.
void add_columns(const ColumnValues& columns, size_t first, size_t tokens, TokenBlock& into) {
  into.columns.teacher_tokens = std::max(into.columns.teacher_tokens, columns.teacher_tokens);
  for (size_t c = 0; c < kTokenColumns; ++c) {
    std::vector<float>& values = into.columns[c];
    if (columns[c].empty() && values.empty()) continue;
    const size_t width = into.columns.width_of(c);
    values.resize(width * into.ids.size(), default_of(c));  // of the documents before
    for (size_t t = 0; t < tokens; ++t) {
      const bool has_target = !columns[c].empty() && t + 1 < tokens;
      for (size_t i = 0; i < width; ++i) {
        values.push_back(has_target ? columns[c][width * (first + t + 1) + i] : default_of(c));
      }
    }
  }
}

// Adds a document and returns the number of its targets. A document without targets is left out,
// since it changes neither loss nor gradients. `columns` are of a document that these tokens are a
// part of, from its token `first` on.
int64_t add_document(std::span<const TokenId> tokens, std::span<const TokenId> labels,
                     TokenizedBlock& block, const ColumnValues& columns = {}, size_t first = 0) {
  LONGSHORE_CHECK(tokens.size() == labels.size());
  if (tokens.empty()) return 0;
  const std::span<const TokenId> targets = labels.subspan(1);
  const auto trained = static_cast<int64_t>(targets.size()) -
                       std::count(targets.begin(), targets.end(), kNotTrained);
  if (trained == 0) return 0;
  TokenBlock& into = block.tokens;
  add_columns(columns, first, tokens.size(), into);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const bool learned = t < targets.size() && targets[t] != kNotTrained;
    if (learned && targets[t] != tokens[t + 1]) {
      into.others.push_back({.token = into.ids.size(), .target = targets[t]});
    }
    into.ids.push_back(tokens[t]);
    into.trained.push_back(learned ? 1 : 0);
  }
  into.lengths.push_back(tokens.size());
  ++block.counts.documents;
  block.counts.tokens += static_cast<int64_t>(tokens.size());
  block.counts.trained_tokens += trained;
  return trained;
}

void add_pieces(const Document& document, size_t piece, TokenizedBlock& block) {
  const std::span<const TokenId> tokens(document.tokens), labels(document.labels);
  for (size_t first = 0; first < tokens.size(); first += piece) {
    const size_t count = std::min(piece, tokens.size() - first);
    add_document(tokens.subspan(first, count), labels.subspan(first, count), block,
                 document.columns, first);
  }
}

// Returns true if one of the first `tokens` positions, except the first, has a label.
bool is_trained(const Document& document, size_t tokens) {
  const auto labels =
      std::span<const TokenId>(document.labels).first(std::min(document.labels.size(), tokens));
  return labels.size() > 1 &&
         std::ranges::any_of(labels.subspan(1), [](TokenId id) { return id != kNotTrained; });
}

FileReport report_of(RowNotes& notes) {
  FileReport report;
  report.unwritten_calls = notes.unwritten.calls;
  report.unwritten_thoughts = notes.unwritten.thoughts;
  report.unwritten_instructions = notes.unwritten.instructions;
  report.unwritten_texts = notes.unwritten.texts;
  report.unwritten_tools = notes.unwritten.tools;
  report.special_tokens = notes.special_tokens;
  report.chat_prompts = notes.chat_prompts;
  report.json_messages = notes.json_messages;
  report.json_texts = notes.json_texts;
  report.merged_borders = notes.merged_borders;
  report.border_piece = std::move(notes.border_piece);
  report.unread = std::move(notes.unread);
  return report;
}

std::string limit_of(size_t max_tokens) {
  return "data.max_tokens = " + std::to_string(max_tokens);
}

constexpr const char* kOverlongHelp =
    "; raise it, or set data.overlength to \"truncate\", \"drop\" or \"split\"";

std::string too_many(size_t tokens, size_t max_tokens) {
  return std::to_string(tokens) + " tokens, more than " + limit_of(max_tokens) + kOverlongHelp;
}

[[noreturn]] void refuse_truncated(size_t max_tokens) {
  throw RowProblem("no trained token is left after truncation to " + limit_of(max_tokens));
}

}  // namespace

std::shared_ptr<RowBlock> read_block(JsonlReader& reader, size_t growth) {
  auto block = std::make_shared<RowBlock>();
  JsonlLine line;
  while (block->text.size() < kBlockBytes / growth && block->rows.size() < kBlockRows) {
    if (!reader.next(line)) break;
    block->last_line = line.number;
    if (line.blank() && !line.too_long) continue;
    block->rows.push_back(
        {line.number, block->text.size(), line.text.size(), line.too_long, line.ended});
    block->text += line.text;
  }
  block->file_position = reader.position();
  return block->last_line == 0 ? nullptr : block;
}

Json parse_row(std::string_view text, bool too_long, bool ended) {
  if (too_long) {
    throw RowProblem("the line is longer than the limit of " + format_bytes(kMaxLineBytes));
  }
  try {
    return parse_python_json(text, {}, {});
  } catch (const DataError& error) {
    // The position in an unnamed text starts with ":1: ", its only line.
    std::string reason = error.what();
    if (reason.starts_with(":1: ")) reason.erase(0, 4);
    if (!ended) reason += "; the file ends inside this row, is it cut off?";
    throw RowProblem(reason);
  }
}

DataSection::Format detect_file_format(JsonlReader reader, const RowFormatOptions& options,
                                       bool skip_bad_rows) {
  JsonlLine line;
  while (reader.next(line)) {
    if (line.blank() && !line.too_long) continue;
    try {
      return detect_format(parse_row(line.text, line.too_long, line.ended), options);
    } catch (const RowProblem&) {
      if (!skip_bad_rows) break;
    }
  }
  return DataSection::Format::kAuto;
}

TokenizedBlock RowTokenizer::tokenize(const RowBlock& block) const {
  TokenizedBlock result;
  result.last_line = block.last_line;
  result.file_position = block.file_position;
  for (const RowBlock::Row& row : block.rows) {
    ++result.counts.rows;
    RowNotes notes;
    try {
      const std::string_view text = std::string_view(block.text).substr(row.begin, row.bytes);
      const Json parsed = parse_row(text, row.too_long, row.ended);
      std::unique_ptr<RowFormat> detected;
      if (format_ == nullptr) {
        // The first row shows no format, so the format of each later row is detected.
        detected = make_row_format(detect_format(parsed, *options_), *options_);
      }
      const RowFormat& format = detected != nullptr ? *detected : *format_;
      std::vector<Document> documents = format.read_row(parsed, &notes);
      if (documents.empty()) {
        ++result.counts.weightless;
      } else if (format.gives_answers()) {
        take_answers(std::move(documents), row.line, result);
      } else {
        take(std::move(documents), row.line, result);
      }
      result.counts.add(report_of(notes));
    } catch (const RowProblem& problem) {
      bad_row(row.line, problem.what(), result);
    }
  }
  return result;
}

void RowTokenizer::bad_row(int64_t line, const std::string& what, TokenizedBlock& block) const {
  ++block.counts.bad_rows;
  if (data_->bad_rows == DataSection::BadRows::kError) block.problems.push_back({line, what});
}

void RowTokenizer::take(std::vector<Document> documents, int64_t line,
                        TokenizedBlock& block) const {
  int64_t tokens = 0, longest = 0;
  for (const Document& document : documents) {
    const auto length = static_cast<int64_t>(document.tokens.size());
    tokens += length;
    longest = std::max(longest, length);
  }
  FileReport& counts = block.counts;
  counts.longest_row_tokens = std::max(counts.longest_row_tokens, longest);
  const bool too_long = longest > data_->max_tokens;
  if (too_long && data_->overlength == DataSection::Overlength::kError) {
    block.problems.push_back(
        {line, too_many(static_cast<size_t>(longest), static_cast<size_t>(data_->max_tokens))});
    return;
  }
  const size_t first = block.tokens.lengths.size();
  for (Document& document : documents) take_one(document, block);
  const size_t added = block.tokens.lengths.size() - first;
  const bool dropped = too_long && data_->overlength == DataSection::Overlength::kDrop;
  const bool truncated = too_long && data_->overlength == DataSection::Overlength::kTruncate;
  if (added == 0 && !dropped) {
    if (truncated) refuse_truncated(static_cast<size_t>(data_->max_tokens));
    throw RowProblem("no token is trained");
  }
  counts.dropped += dropped ? 1 : 0;
  counts.truncated += truncated ? 1 : 0;
  counts.split += too_long && !dropped && !truncated ? 1 : 0;
  if (documents.size() == 1) return;
  // Samples of one conversation are held out together; pieces of a long document need not be.
  for (size_t d = first + 1; d < first + added; ++d) block.tokens.rows_go_on.push_back(d);
  ++counts.resampled_rows;
  counts.resampled_tokens += tokens - longest;
}

void RowTokenizer::take_answers(std::vector<Document> answers, int64_t line,
                                TokenizedBlock& block) const {
  using Overlength = DataSection::Overlength;
  const auto max_tokens = static_cast<size_t>(data_->max_tokens);
  const auto all_trained = [&answers](size_t tokens) {
    return std::ranges::all_of(
        answers, [tokens](const Document& answer) { return is_trained(answer, tokens); });
  };
  size_t longest = 0;
  for (const Document& answer : answers) longest = std::max(longest, answer.tokens.size());
  FileReport& counts = block.counts;
  counts.longest_row_tokens = std::max(counts.longest_row_tokens, static_cast<int64_t>(longest));
  if (std::ranges::any_of(
          answers, [](const Document& answer) { return !answer.columns[kWeightColumn].empty(); })) {
    throw RowProblem("a judged answer has no weight of its own; leave out the member \"weight\"");
  }
  if (!all_trained(longest)) {
    throw RowProblem(answers.size() == 1 ? "no token is trained"
                                         : "no token is trained of one of the answers");
  }
  const bool too_long = longest > max_tokens;
  if (too_long && data_->overlength == Overlength::kError) {
    block.problems.push_back({line, too_many(longest, max_tokens)});
    return;
  }
  if (too_long && data_->overlength == Overlength::kSplit) {
    block.problems.push_back(
        {line, std::to_string(longest) + " tokens, more than " + limit_of(max_tokens) + ", and " +
                   (answers.size() == 1 ? "a judged answer" : "an answer of a pair") +
                   " cannot be split; set data.overlength to \"truncate\" or \"drop\""});
    return;
  }
  if (too_long && (data_->overlength == Overlength::kDrop || !all_trained(max_tokens))) {
    ++counts.dropped;
    return;
  }
  const size_t first = block.tokens.lengths.size();
  for (Document& document : answers) {
    document.tokens.resize(std::min(document.tokens.size(), max_tokens));
    document.labels.resize(document.tokens.size());
    if (!document.desirable) block.tokens.undesirable.push_back(block.tokens.lengths.size());
    add_document(document.tokens, document.labels, block, document.columns);
  }
  LONGSHORE_CHECK(block.tokens.lengths.size() == first + answers.size());
  for (size_t d = first + 1; d < block.tokens.lengths.size(); ++d) {
    block.tokens.rows_go_on.push_back(d);
  }
  counts.truncated += too_long ? 1 : 0;
  const bool equal = answers.size() == 2 && answers[0].tokens == answers[1].tokens;
  counts.equal_pairs += equal ? 1 : 0;
}

void RowTokenizer::take_one(Document& document, TokenizedBlock& block) const {
  const auto max_tokens = static_cast<size_t>(data_->max_tokens);
  const bool too_long = document.tokens.size() > max_tokens;
  if (too_long && data_->overlength == DataSection::Overlength::kDrop) return;
  if (too_long && data_->overlength == DataSection::Overlength::kSplit) {
    add_pieces(document, max_tokens, block);
    return;
  }
  if (too_long) {
    LONGSHORE_CHECK(data_->overlength == DataSection::Overlength::kTruncate);
    document.tokens.resize(max_tokens);
    document.labels.resize(max_tokens);
  }
  add_document(document.tokens, document.labels, block, document.columns);
}

void LongText::add(std::span<const TokenId> ids) {
  const auto limit = static_cast<size_t>(tokenizer_->data().max_tokens);
  const bool split = tokenizer_->data().overlength == DataSection::Overlength::kSplit;
  for (const TokenId id : ids) {
    if (pending_.size() == limit && split) give_document();
    if (pending_.size() < limit) pending_.push_back(id);
    ++tokens_;
  }
  // Tokenizing the rest may take minutes and would not change the error.
  if (tokens_ > tokenizer_->data().max_tokens &&
      tokenizer_->data().overlength == DataSection::Overlength::kError) {
    throw OverlongText("more tokens than " + limit_of(limit) + kOverlongHelp);
  }
}

void LongText::give_document() {
  TokenizedBlock block;
  trained_ += add_document(pending_, pending_, block);
  pending_.clear();
  given_ = true;
  use_(block);
}

void LongText::finish() {
  const DataSection& data = tokenizer_->data();
  TokenizedBlock block;
  block.counts.rows = 1;
  block.counts.longest_row_tokens = tokens_;
  if (tokens_ <= data.max_tokens || data.overlength == DataSection::Overlength::kSplit) {
    trained_ += add_document(pending_, pending_, block);
    if (trained_ == 0) throw RowProblem("no token is trained");
    block.counts.split = given_ ? 1 : 0;
  } else if (data.overlength == DataSection::Overlength::kTruncate) {
    if (add_document(pending_, pending_, block) == 0) refuse_truncated(pending_.size());
    ++block.counts.truncated;
  } else {
    LONGSHORE_CHECK(data.overlength == DataSection::Overlength::kDrop);
    ++block.counts.dropped;
  }
  given_ = true;
  use_(block);
}

}  // namespace longshore
