// RunPreparation: tokenises a run's files with the tokenizer, chat template, cache and threads of
// the run file. Owned by the caller; main thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/prepare/prepare.h"
#include "data/tokens/file_mix.h"
#include "trainer/model/added_tokens.h"

namespace longshore {

class RunPreparation {
 public:
  // DataError if the tokenizer or template is unusable. `vocabulary` is the model's.
  RunPreparation(const RunConfig& config, const std::string& model_directory, int64_t vocabulary);
  RunPreparation(const RunPreparation&) = delete;
  RunPreparation& operator=(const RunPreparation&) = delete;

  // Prepares the files that the cache lacks, with a progress line on a terminal. `stop` is called
  // periodically and may throw; finished work is kept and the next call continues from it.
  PreparedData run(const std::vector<std::string>& files, const std::function<void()>& stop) const;
  // Returns lines such as "4 files: 200 rows, ... tokens", or none unless all are prepared.
  std::vector<std::string> known(const std::vector<std::string>& files) const;
  // Returns the options for these files; they refer to this object.
  PrepareOptions options(const std::vector<std::string>& files) const;

 private:
  const RunConfig& config_;
  int64_t vocabulary_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;
};

// Returns the chat template that the run trains with: data.chat_template, or the tokenizer's own;
// nullopt if there is none.
std::optional<ChatTemplate> run_chat_template(const RunConfig& config,
                                              const std::string& tokenizer_directory,
                                              const Tokenizer& tokenizer);
// Returns data.cache; for "auto" it is `longshore` in the user's cache directory, or `cache` in
// run.dir if the user has none that may be written.
std::string cache_directory(const RunConfig& config);
// Removes unused files from the cache until at most `limit` bytes are left, and logs it.
void clean_run_cache(const RunConfig& config, Bytes limit);

// Resolves the entries of data.train and data.eval: paths, or hub ids of data sets in the local
// Hugging Face cache. Plain functions.

// Returns `data` with each hub id replaced by its files, which all get the id's weight. Existing
// paths stay unchanged. DataError if the cache lacks the data set.
DataSection with_data_files(DataSection data);
// Returns how data.mix mixes the files of data.train; with data.shuffle = false they are spread.
FileMix file_mix(const DataSection& data);

}  // namespace longshore
