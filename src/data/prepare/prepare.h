// Converts a run's data files to token files in the cache, or opens those that exist. Any
// number of processes may call it at once. Each cache entry has a lock file: one process makes the
// entry, the others wait and open it. Called by the main thread; uses worker threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "data/rows/data_report.h"
#include "data/rows/row_format.h"
#include "data/tokens/token_file.h"

namespace longshore {

struct PrepareProgress {
  std::string path;
  Bytes read_bytes = 0;  // of the file, which may be compressed
  Bytes file_bytes = 0;
  uint64_t tokens = 0;
  bool waiting = false;  // until another process has made the entry
};

struct PrepareOptions {
  std::vector<std::string> files;
  DataSection data;                      // decides how rows become tokens
  const Tokenizer* tokenizer = nullptr;  // may be null if all files hold token ids
  const ChatTemplate* chat = nullptr;    // may be null if no file holds conversations
  int64_t model_vocabulary_size = 0;
  int64_t teacher_tokens = DistillOptions().top_k;  // distill.top_k
  std::vector<ColumnId> columns;                    // as in RowFormatOptions
  std::string cache;                                // directory; created if missing
  int64_t threads = 0;  // 0: all of the machine; results do not depend on it
  // Called regularly, by one thread at a time. It may throw to stop; completed work is kept.
  std::function<void(const PrepareProgress&)> on_progress = {};
  Bytes save_every_bytes = 64 * kMiB;  // bytes of the data file between resume points
};

struct PreparedData {
  std::vector<std::unique_ptr<TokenFile>> files;  // one for each of the options' files
  std::vector<std::string> paths;                 // of the token files
  DataReport report;
  int64_t made = 0;  // number of files that the cache lacked
};

// A DataError names file and line of the bad rows (at most ten), or says that no document is left.
PreparedData prepare_or_open(const PrepareOptions& options);

// Returns the report if the cache has all files, otherwise nullopt. Reads no rows.
std::optional<DataReport> report_of_prepared(const PrepareOptions& options);

// Returns the options for reading rows of these files.
RowFormatOptions row_format_options(const PrepareOptions& options);

// Splits an entry of a table, such as "name = \"value\"", into its name and value.
std::pair<std::string, Json> table_entry(const std::string& entry);

// Returns true if the whole file is one document: .txt, also compressed.
bool is_text_file(const std::string& path);
// Returns a text file's content, with line feeds as line breaks and no byte order mark.
std::string read_text_file(UniqueFd file);

}  // namespace longshore
