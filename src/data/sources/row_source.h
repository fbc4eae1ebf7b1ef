// Reads a data file's rows as lines of JSON, in bounded memory. JSONL stays unchanged;
// elements of a JSON array and rows of a table (Parquet) become lines. One owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "data/sources/byte_source.h"

namespace longshore {

// The first bytes of the file decide its kind. Line n is element or row n. Null members of table
// rows are left out, since a table has every member in every row. Throws DataError (also while
// reading) if an array or table is damaged or cut off.
std::unique_ptr<ByteSource> open_row_source(UniqueFd file);

// The elements of a JSON array as lines. Internal to src/data.

// `front` is the start of the text, already read from `source`; its first non-blank byte is the
// array's bracket. The reader of the lines reports errors inside an element.
std::unique_ptr<ByteSource> make_array_rows(std::string front, std::unique_ptr<ByteSource> source,
                                            const std::string& path);

// JsonlReader: reads a file's rows as lines of JSON, in bounded memory. One owner thread. A byte
// order mark and the carriage return before a line feed are removed.

// Longer rows are skipped and reported.
inline constexpr Bytes kMaxLineBytes = 16 * kMiB;

struct JsonlLine {
  int64_t number = 0;     // from 1
  std::string_view text;  // valid until the next call; empty if too_long
  bool too_long = false;  // more than kMaxLineBytes; the rest of the line was skipped
  bool ended = false;     // by a line feed; only the last line may be without

  // Returns true if the line holds only blanks.
  bool blank() const { return text.find_first_not_of(" \t\r") == std::string_view::npos; }
};

class JsonlReader {
 public:
  // Throws DataError as open_data_file does.
  explicit JsonlReader(const std::string& path, int64_t max_rows = 0)
      : JsonlReader(open_data_file(path), max_rows) {}
  // Reads a file of open_data_file. The file ends for the reader after `max_rows` lines that are
  // not blank; 0: after all of them.
  explicit JsonlReader(UniqueFd file, int64_t max_rows = 0);

  // Returns false at the end of the file, and after `max_rows` rows.
  bool next(JsonlLine& line);
  const std::string& path() const { return path_; }
  // Returns the bytes of the file read so far, for progress.
  Bytes position() const { return source_->file_position(); }

 private:
  bool next_line(JsonlLine& line);
  bool refill();
  bool pass_over_line();
  void skip_byte_order_mark();

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;  // unread bytes start at begin_
  size_t begin_ = 0;
  int64_t line_number_ = 0;
  int64_t max_rows_ = 0;  // 0: all
  int64_t rows_ = 0;      // lines that were given and are not blank
  bool at_end_ = false;
};

// Text files: the raw documents of files, for training a tokenizer. One thread, bounded memory.

// Calls `use` with every document: each "text" member of a .jsonl file, or the whole of any other
// file. A DataError names file and line of a row without a text.
void for_each_text(const std::vector<std::string>& files,
                   const std::function<void(std::string_view)>& use);

}  // namespace longshore
