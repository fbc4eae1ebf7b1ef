// RunPreparation: how a run's files become tokens: tokenizer, chat template, cache and threads, as
// the run file says. Owned by whoever prepares; main thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/prepare.h"

namespace longshore {

class RunPreparation {
 public:
  // DataError for a tokenizer or template that cannot be used. `vocabulary`: of the model.
  RunPreparation(const RunConfig& config, const std::string& model_directory, int64_t vocabulary);
  RunPreparation(const RunPreparation&) = delete;
  RunPreparation& operator=(const RunPreparation&) = delete;

  // Prepares what is not in the cache yet, with a progress line on a terminal. `stop` is called now
  // and then and may throw: what is done is kept, and the next call goes on from there.
  PreparedData run(const std::vector<std::string>& files, const std::function<void()>& stop) const;
  // "4 files: 200 rows, ... tokens" and so on, where all were prepared before; else nothing.
  std::vector<std::string> known(const std::vector<std::string>& files) const;
  // For the files given; the preparation must outlive what is made of them.
  PrepareOptions options(const std::vector<std::string>& files) const;

 private:
  const RunConfig& config_;
  int64_t vocabulary_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;
};

// tokenizer.path, or the model's directory.
std::string tokenizer_directory(const RunConfig& config, const std::string& model_directory);
// data.cache, or longshore in the user's cache directory.
std::string cache_directory(const RunConfig& config);
// Removes from there what nobody uses, until no more than `limit` is left, and says so.
void clean_run_cache(const RunConfig& config, Bytes limit);

}  // namespace longshore
