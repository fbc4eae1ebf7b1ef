// DataReport: counts every row that was not used unchanged. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace longshore {

// FileReport: the results of preparing one file.
struct FileReport {
  std::string path;
  uint64_t content = 0;    // xxh3 of the file's bytes; 0: unknown
  std::string format;      // "text", "messages", ...
  bool detected = false;   // by the first row, not set in the run file
  int64_t rows = 0;        // blank lines do not count
  int64_t bad_rows = 0;    // skipped: damaged, of another format, or without a trained token
  int64_t truncated = 0;   // rows cut to max_tokens
  int64_t dropped = 0;     // rows left out because they were longer
  int64_t split = 0;       // rows cut into several documents
  int64_t weightless = 0;  // rows left out because their weight is 0
  // Conversations that became several samples, because the chat template changes earlier answers
  // when messages follow; and the tokens of all their samples except the longest.
  int64_t resampled_rows = 0;
  int64_t resampled_tokens = 0;
  // These count parts of conversations that the chat template does not write (text/chat_encoder.h).
  int64_t unwritten_calls = 0;
  int64_t unwritten_thoughts = 0;
  int64_t unwritten_instructions = 0;
  int64_t unwritten_texts = 0;
  int64_t unwritten_tools = 0;
  int64_t special_tokens = 0;  // that the rows' own texts spell
  int64_t chat_prompts = 0;    // rows with an instruction that data.prompt_template = "auto" writes
                               // by the chat template
  int64_t json_messages = 0;   // rows whose messages are JSON text
  int64_t json_texts = 0;      // rows with such text that is trained as a text
  int64_t merged_borders = 0;  // rows in which a token spans the end of the prompt
  std::string border_piece;    // the first such token's text, printable; "": unknown
  int64_t equal_pairs = 0;     // pairs whose two answers have the same tokens
  // Counts of the row members that are not read, by name. Names after the first 32 are counted
  // together.
  std::map<std::string, int64_t> unread;
  int64_t documents = 0;
  int64_t tokens = 0;          // in documents
  int64_t trained_tokens = 0;  // of them with a target
  int64_t longest_row_tokens = 0;

  // Adds the counts; path and format stay.
  void add(const FileReport& other);
};

// Converts all but path and content. Throws DataError if the object is no report.
Json to_json(const FileReport& report);
FileReport file_report_of(const Json& object, const std::string& origin);

// Returns log lines: one for the counts, and one each if conversations became several samples, if
// "auto" wrote instructions by the chat template, if messages were JSON text, if texts spell
// special tokens, and if members of rows are not read.
std::vector<std::string> lines_of(const FileReport& report);
// Returns one warning for each kind of part that the chat template does not write, and for rows
// that may be trained otherwise than they are meant.
std::vector<std::string> warnings_of(const FileReport& report);

struct DataReport {
  std::vector<FileReport> files;
  FileReport total() const;
  // Returns the total with a short path, such as "4 files", and the format of all files or "mixed".
  FileReport sum() const;
  // Returns the lines of all files, in order.
  std::vector<std::string> lines() const;
  std::vector<std::string> warnings() const;
};

}  // namespace longshore
