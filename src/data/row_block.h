// RowBlock: a stretch of a file's rows, and what becomes of it: the unit of work of `prepare`.
// Reading is one thread's, tokenising any thread's. Internal to src/data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/data_report.h"
#include "data/jsonl_reader.h"
#include "data/row_format.h"
#include "data/token_file_writer.h"

namespace longshore {

struct RowBlock {
  struct Row {
    int64_t line = 0;
    size_t begin = 0, bytes = 0;  // in `text`
    bool too_long = false;
    bool ended = true;
  };
  std::string text;
  std::vector<Row> rows;  // blank lines are none
  int64_t last_line = 0;  // the last line read, blank or not
  Bytes file_position = 0;
};

// What is wrong with a row of a file.
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

// The next rows of the file, about a quarter of a mebibyte; null at the end.
std::shared_ptr<RowBlock> read_block(JsonlReader& reader);

// A row as JSON; RowProblem says why it is none.
Json parse_row(std::string_view text, bool too_long, bool ended);

// The format that the first readable row shows; kAuto where none does.
DataSection::Format detect_file_format(const std::string& path, const RowFormatOptions& options,
                                       bool skip_bad_rows);

// Turns rows into documents, by the rules of the run file. Immutable, any thread.
class RowTokenizer {
 public:
  // `format` null: no row shows a format, and each says so. Both must outlive the tokenizer.
  RowTokenizer(const DataSection* data, const RowFormat* format, const RowFormatOptions* options)
      : data_(data), format_(format), options_(options) {}

  TokenizedBlock tokenize(const RowBlock& block) const;
  // The documents of a row into a block: each cut, left out or refused where it is too long.
  void take(std::vector<Document> documents, int64_t line, TokenizedBlock& block) const;
  void bad_row(int64_t line, const std::string& what, TokenizedBlock& block) const;
  const DataSection& data() const { return *data_; }

 private:
  void take_one(Document& document, TokenizedBlock& block) const;

  const DataSection* data_;
  const RowFormat* format_;
  const RowFormatOptions* options_;
};

// A text that may not be as long as it is.
class OverlongText : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A text all of whose tokens are trained, taken as RowTokenizer takes a document, without ever
// holding more of it than a document may have. One owner thread.
class LongText {
 public:
  // `use` is given blocks as they fill, and may take what is in them.
  LongText(const RowTokenizer* tokenizer, std::function<void(TokenizedBlock&)> use)
      : tokenizer_(tokenizer), use_(std::move(use)) {}

  // OverlongText, as soon as that is sure.
  void add(std::span<const TokenId> ids);
  // Whether blocks were given out already.
  bool given() const { return given_; }
  // RowProblem where no token is trained.
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
