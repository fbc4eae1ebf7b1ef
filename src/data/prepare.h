// Prepare: the files that a run names as token files in the cache, made where they are not there
// yet. Safe to call from any number of processes at once, with the same files or others: each entry
// of the cache has a lock file; one process makes the entry, the others wait and open it.
// Main thread; workers inside.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/data_report.h"
#include "data/row_format.h"
#include "data/token_file.h"

namespace longshore {

struct PrepareProgress {
  std::string path;
  Bytes read_bytes = 0;  // of the file, which may be compressed
  Bytes file_bytes = 0;
  uint64_t tokens = 0;
  bool waiting = false;  // for another process that makes the entry
};

struct PrepareOptions {
  std::vector<std::string> files;
  DataSection data;                      // what decides how rows become tokens
  const Tokenizer* tokenizer = nullptr;  // may be absent where all files hold token ids
  const ChatTemplate* chat = nullptr;    // may be absent where no file holds conversations
  int64_t model_vocabulary_size = 0;
  std::string cache;    // directory; made where it is missing
  int64_t threads = 0;  // 0: as many as the machine has; the result does not depend on it
  // Called now and then, from one thread at a time; may throw to stop. What is done by then is
  // kept.
  std::function<void(const PrepareProgress&)> on_progress = {};
  Bytes save_every_bytes = 64 * kMiB;  // of the data file, between points to go on from
};

struct PreparedData {
  std::vector<std::unique_ptr<TokenFile>> files;  // one for each of the options' files
  std::vector<std::string> paths;                 // of the token files
  DataReport report;
  int64_t made = 0;  // files that were not in the cache
};

// DataError names file and line of every bad row (the first ten), or says that nothing is left.
PreparedData prepare_or_open(const PrepareOptions& options);

// What became of the files, where the cache has all of them; reads no rows.
std::optional<DataReport> report_of_prepared(const PrepareOptions& options);

// How rows of the options' files are read.
RowFormatOptions row_format_options(const PrepareOptions& options);

// Whether the file is one document: .txt, also compressed.
bool is_text_file(const std::string& path);
// A text file's content: line breaks as line feeds, without a byte order mark.
std::string read_text_file(const std::string& path);

}  // namespace longshore
