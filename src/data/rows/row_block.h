// RowBlock: a range of a file's rows and their tokens, the unit of work of `prepare`. One thread
// reads blocks; any thread tokenizes them. Internal to src/data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/rows/data_report.h"
#include "data/rows/row_format.h"
#include "data/sources/row_source.h"
#include "data/tokens/token_file_writer.h"

namespace longshore {

struct RowBlock {
  struct Row {
    int64_t line = 0;
    size_t begin = 0, bytes = 0;  // in `text`
    bool too_long = false;
    bool ended = true;
  };
  std::string text;
  std::vector<Row> rows;  // without blank lines
  int64_t last_line = 0;  // the last line read, blank or not
  Bytes file_position = 0;
};

// PlacedProblem: a fault and the line that has it.
struct PlacedProblem {
  int64_t line = 0;  // 0: the whole file
  std::string text;
};

struct TokenizedBlock {
  TokenBlock tokens;
  FileReport counts;
  std::vector<PlacedProblem> problems;
  int64_t last_line = 0;
  Bytes file_position = 0;
};

// Returns the next rows of the file, about 256 KiB after tokenizing made them `growth` times
// longer; null at the end.
std::shared_ptr<RowBlock> read_block(JsonlReader& reader, size_t growth);

// Parses a row as JSON; a RowProblem gives the reason of a failure.
Json parse_row(std::string_view text, bool too_long, bool ended);

// Returns the format of the first row (with skip_bad_rows: the first usable row), else kAuto.
DataSection::Format detect_file_format(JsonlReader reader, const RowFormatOptions& options,
                                       bool skip_bad_rows);

// RowTokenizer: converts rows to documents by the rules of the run file. Immutable, any thread.
class RowTokenizer {
 public:
  // A null `format`: each row's format is detected. The arguments must outlive the tokenizer.
  RowTokenizer(const DataSection* data, const RowFormat* format, const RowFormatOptions* options)
      : data_(data), format_(format), options_(options) {}

  TokenizedBlock tokenize(const RowBlock& block) const;
  // Adds the documents of a row to a block; too long ones are cut, dropped or refused.
  void take(std::vector<Document> documents, int64_t line, TokenizedBlock& block) const;
  // Adds the answers of a row that people judged, or none of them. All are cut by the same rule.
  void take_answers(std::vector<Document> answers, int64_t line, TokenizedBlock& block) const;
  void bad_row(int64_t line, const std::string& what, TokenizedBlock& block) const;
  const DataSection& data() const { return *data_; }

 private:
  void take_one(Document& document, TokenizedBlock& block) const;

  const DataSection* data_;
  const RowFormat* format_;
  const RowFormatOptions* options_;
};

// OverlongText: a text exceeds data.max_tokens where the run file makes that an error.
class OverlongText : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// LongText: adds a text whose tokens are all trained, by RowTokenizer's rules for documents. It
// holds at most one document of the text. One owner thread.
class LongText {
 public:
  // `use` receives each full block and may move its content.
  LongText(const RowTokenizer* tokenizer, std::function<void(TokenizedBlock&)> use)
      : tokenizer_(tokenizer), use_(std::move(use)) {}

  // Throws OverlongText at the first token over the limit if data.overlength is "error".
  void add(std::span<const TokenId> ids);
  // Returns true if `use` has received a block.
  bool given() const { return given_; }
  // Throws RowProblem if no token is trained.
  void finish();

 private:
  void give_document();

  const RowTokenizer* tokenizer_;
  std::function<void(TokenizedBlock&)> use_;
  std::vector<TokenId> pending_;
  int64_t tokens_ = 0;
  int64_t trained_ = 0;
  bool given_ = false;
};

}  // namespace longshore
