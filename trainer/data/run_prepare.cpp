#include "trainer/data/run_prepare.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "data/prepare/prepared_cache.h"
#include "hf/hub_cache.h"
#include "trainer/data/run_data.h"

namespace longshore {
namespace {

// Whether a directory may be written, or made below the nearest one that is there.
bool may_be_written(const std::string& directory) {
  const std::string there = nearest_existing(directory);
  std::error_code ignored;
  return std::filesystem::is_directory(there, ignored) && ::access(there.c_str(), W_OK | X_OK) == 0;
}

// Returns the directory that XDG_CACHE_HOME or HOME gives for caches; empty if neither is set.
std::string user_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return cache;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache" : std::string();
}

// Shows progress file by file.
class Preparing {
 public:
  void show(const PrepareProgress& progress) {
    if (progress.path != path_) begin(progress);
    if (progress.waiting) {
      if (!std::exchange(waiting_, true)) {
        log_info("waiting for another process that prepares " + path_);
      }
      return;
    }
    shown_->add(progress.read_bytes - std::exchange(done_, progress.read_bytes));
  }

 private:
  void begin(const PrepareProgress& progress) {
    path_ = progress.path;
    done_ = 0;
    waiting_ = false;
    shown_.emplace("preparing " + std::filesystem::path(path_).filename().string(),
                   progress.file_bytes);
  }

  std::string path_;
  Bytes done_ = 0;
  bool waiting_ = false;
  std::optional<Progress> shown_;
};

// Returns the files of an entry of data.train or data.eval: those of a hub id, or itself.
std::vector<std::string> files_of_entry(const std::string& entry, DatasetUse use) {
  std::error_code ignored;
  const bool is_id = !std::filesystem::exists(entry, ignored) && names_hub_dataset(entry);
  return is_id ? hub_dataset_files(entry, use) : std::vector<std::string>{entry};
}

void replace_ids(std::vector<std::string>& files, std::vector<double>& weights, DatasetUse use) {
  std::vector<std::string> paths;
  std::vector<double> own;
  for (size_t i = 0; i < files.size(); ++i) {
    std::vector<std::string> found = files_of_entry(files[i], use);
    if (i < weights.size()) own.insert(own.end(), found.size(), weights[i]);
    std::move(found.begin(), found.end(), std::back_inserter(paths));
  }
  files = std::move(paths);
  weights = std::move(own);
}

// Returns the columns that rows have for the run's loss, beside those of their format.
std::vector<ColumnId> columns_of_rows(const RunConfig& config) {
  std::vector<ColumnId> columns;
  if (traits_of(config.train.loss).own_rows != nullptr) return columns;
  const std::shared_ptr<const Loss> loss = loss_of(config);
  for (const ColumnId column : loss->columns()) {
    if (column < kTokenColumns) columns.push_back(column);
  }
  return columns;
}

}  // namespace

std::optional<ChatTemplate> run_chat_template(const RunConfig& config,
                                              const std::string& tokenizer_directory,
                                              const Tokenizer& tokenizer) {
  const std::string& asked = config.data.chat_template;
  const bool training = asked == "training", own = asked != "auto" && !training;
  return ChatTemplate::load(
      tokenizer_directory, tokenizer,
      {.file = own ? asked : std::string(), .date = config.data.date, .training = training});
}

std::string cache_directory(const RunConfig& config) {
  if (config.data.cache != "auto") return config.data.cache;
  // A container may have a home directory that its user may not write.
  const std::string user = user_cache();
  if (!user.empty() && (config.run.dir.empty() || may_be_written(user + "/longshore"))) {
    return user + "/longshore";
  }
  return config.run.dir + "/cache";
}

void clean_run_cache(const RunConfig& config, Bytes limit) {
  const std::string directory = cache_directory(config);
  const CacheCleaning cleaned = clean_cache(directory, limit);
  if (cleaned.files == 0) return;
  log_info(directory + ": removed " + std::to_string(cleaned.files) + " prepared files of " +
           format_bytes(cleaned.bytes) + " that no run uses; " + format_bytes(cleaned.left_bytes) +
           " are left");
}

RunPreparation::RunPreparation(const RunConfig& config, const std::string& model_directory,
                               int64_t vocabulary)
    : config_(config), vocabulary_(vocabulary) {
  const std::string directory = tokenizer_directory(config, model_directory);
  const DataSection::Format format = config.data.format;
  std::error_code ignored;
  const bool absent = !std::filesystem::exists(directory + "/tokenizer.json", ignored);
  // Rows of token ids need no tokenizer, so its directory may lack one.
  if (format == DataSection::Format::kTokens || format == DataSection::Format::kPolicy ||
      format == DataSection::Format::kDistill) {
    return;
  }
  const bool may_be_ids = format == DataSection::Format::kAuto ||
                          format == DataSection::Format::kPreference ||
                          format == DataSection::Format::kUnpaired;
  if (may_be_ids && absent && config.tokenizer.path == "auto") return;
  tokenizer_ = load_run_tokenizer(config, model_directory);
  chat_ = run_chat_template(config, directory, *tokenizer_);
}

PrepareOptions RunPreparation::options(const std::vector<std::string>& files) const {
  return {.files = files,
          .data = config_.data,
          .tokenizer = tokenizer_ ? &*tokenizer_ : nullptr,
          .chat = chat_ ? &*chat_ : nullptr,
          .model_vocabulary_size = vocabulary_,
          .teacher_tokens = config_.distill.top_k,
          .columns = columns_of_rows(config_),
          .cache = cache_directory(config_),
          .threads = config_.data.threads.value_or(0)};
}

std::vector<std::string> RunPreparation::known(const std::vector<std::string>& files) const {
  const std::optional<DataReport> report = report_of_prepared(options(files));
  if (!report || report->files.empty()) return {};
  return lines_of(report->sum());
}

PreparedData RunPreparation::run(const std::vector<std::string>& files,
                                 const std::function<void()>& stop) const {
  std::optional<Preparing> shown(std::in_place);
  PrepareOptions asked = options(files);
  asked.on_progress = [&](const PrepareProgress& progress) {
    stop();
    shown->show(progress);
  };
  PreparedData prepared = prepare_or_open(asked);
  shown.reset();
  if (chat_ && !chat_->replaced().empty()) {
    log_info("data.chat_template: the training template of " + chat_->replaced() +
             ": a conversation is one sample, its answers written as they were when generated");
  }
  if (prepared.made > 0 && chat_ && chat_->uses_date()) {
    log_info("where the chat template prints today's date, it is data.date = \"" +
             config_.data.date + "\"");
  }
  if (prepared.made > 0) clean_run_cache(config_, config_.data.cache_limit);
  return prepared;
}

DataSection with_data_files(DataSection data) {
  std::vector<double> none;
  replace_ids(data.train, data.weights, DatasetUse::kTrain);
  replace_ids(data.eval, none, DatasetUse::kEvaluate);
  return data;
}

FileMix file_mix(const DataSection& data) {
  FileMix mix{.rule = data.mix,
              .entries = {},
              .probabilities = data.probabilities,
              .spread = !data.shuffle};
  if (!mix.on()) return mix;
  for (const std::string& entry : data.train) {
    mix.entries.push_back({entry, files_of_entry(entry, DatasetUse::kTrain).size()});
  }
  return mix;
}

}  // namespace longshore
