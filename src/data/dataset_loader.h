// DatasetLoader: the files that a run names, tokenised into a dataset, with an account of every row
// that was not taken as it is. One thread, before the first step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "config/run_config.h"
#include "data/dataset.h"
#include "text/tokenizer.h"

namespace longshore {

// What became of a file's rows.
struct FileReport {
  std::string path;
  std::string format;     // "text" or "tokens"
  bool detected = false;  // by the first row, not by the run file
  int64_t rows = 0;       // blank lines are none
  int64_t bad_rows = 0;   // skipped: damaged, of another format, or without a trained token
  int64_t truncated = 0;  // rows cut to max_tokens
  int64_t dropped = 0;    // rows left out because they were longer
  int64_t split = 0;      // rows cut into several documents
  int64_t documents = 0;
  int64_t tokens = 0;          // in documents
  int64_t trained_tokens = 0;  // of them with a target
  int64_t longest_row_tokens = 0;
};

struct DataReport {
  std::vector<FileReport> files;
  FileReport total() const;
  // One line per file, for the log.
  std::vector<std::string> lines() const;
};

struct LoadedData {
  std::unique_ptr<Dataset> dataset;
  DataReport report;
};

struct DatasetLoadOptions {
  std::vector<std::string> files;        // in this order
  DataSection data;                      // format, max_tokens, overlength, bad_rows, add_eos
  const Tokenizer* tokenizer = nullptr;  // may be absent where all files hold token ids
  int64_t model_vocabulary_size = 0;
  // Called now and then with the bytes of text read so far; may throw to stop loading.
  std::function<void(Bytes)> on_progress = {};
};

// DataError names file and line of every bad row (the first ten), or says that nothing is left.
LoadedData load_dataset(const DatasetLoadOptions& options);

}  // namespace longshore
