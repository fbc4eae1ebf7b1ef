#include "data/prepare/prepare.h"

#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "data/prepare/prepared_cache.h"
#include "data/rows/row_block.h"
#include "data/rows/row_format.h"
#include "data/sources/data_file.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxProblems = 10;
constexpr Bytes kMaxTextFileBytes = kGiB;
constexpr int64_t kLinesBetweenReports = 4096;
// This limits the bytes of rows in the pipeline; blocks of usual rows never reach it.
constexpr size_t kMostBytesInPipeline = size_t{32} << 20;
constexpr size_t kBytesOfABlock = size_t{1} << 20;
// This version is part of the key and grows when the same rows would become other tokens.
constexpr int kRulesVersion = 10;

[[noreturn]] void refuse(const std::string& path, const std::vector<PlacedProblem>& problems) {
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMaxProblems); ++i) {
    const PlacedProblem& problem = problems[i];
    const std::string line = problem.line == 0 ? "" : ":" + std::to_string(problem.line);
    text += (text.empty() ? "" : "\n") + path + line + ": " + problem.text;
  }
  if (problems.size() >= kMaxProblems) text += "\nthere may be more; reading stopped here";
  throw DataError(text);
}

class FilePreparer {
 public:
  FilePreparer(const PrepareOptions& options, const std::string& path)
      : options_(options), rows_(row_format_options(options)), path_(path) {
    progress_.path = path;
  }

  // Returns the path of the token file.
  std::string run(PreparedData& prepared) {
    file_.emplace(open_data_file(path_), options_.cache);
    JsonlReader{file_->from_begin()};  // refuses a damaged table and UTF-16
    progress_.file_bytes = file_->bytes();
    content_ = file_->content([this] { report_progress(); });
    const uint64_t key = key_of();
    const std::string entry = options_.cache + "/" + hash_text(key);
    const std::string path = entry + ".tok";
    // Entries are renamed into place when complete, so an existing one needs no lock.
    if (open(path, key, prepared)) return path;
    const EntryLock lock(entry + ".lock", [this] {
      progress_.waiting = true;
      report_progress();
    });
    progress_.waiting = false;
    if (open(path, key, prepared)) return path;
    make(entry, path, key);
    LONGSHORE_CHECK(open(path, key, prepared)) << path;
    ++prepared.made;
    return path;
  }

  // Returns true if the cache has the file, without reading the file's content.
  bool find(PreparedData& prepared) {
    std::error_code ignored;
    if (!fs::is_regular_file(path_, ignored)) return false;
    const DataFile file(open_for_reading(path_), options_.cache);
    const std::optional<uint64_t> content = file.noted();
    if (!content) return false;
    progress_.file_bytes = file.bytes();
    content_ = *content;
    const uint64_t key = key_of();
    return open(options_.cache + "/" + hash_text(key) + ".tok", key, prepared);
  }

 private:
  bool open(const std::string& path, uint64_t key, PreparedData& prepared) {
    UniqueFd use = use_entry(path);
    if (!use.valid()) return false;
    try {
      auto file = std::make_unique<TokenFile>(path, std::move(use));
      if (file->header().key != key) throw DataError(path + ": is another entry's");
      FileReport report = file_report_of(parse_json(file->report(), {}, path), path);
      report.path = path_;
      report.content = content_;
      prepared.files.push_back(std::move(file));
      prepared.report.files.push_back(std::move(report));
      return true;
    } catch (const DataError& error) {
      // It is opened once more under the lock, which is no news.
      if (std::exchange(damage_, error.what()) != error.what()) {
        log_warning(damage_ + "; it is prepared again");
      }
      return false;
    }
  }

  // Returns the hash of the file's bytes and of all settings that affect the tokens.
  uint64_t key_of() const {
    const DataSection& data = options_.data;
    Json settings = {
        {"rules", kRulesVersion},
        {"file", kTokenFileVersion},
        {"content", hash_text(content_)},
        {"bytes", progress_.file_bytes},
        {"one_document", is_text_file(path_)},
        {"tokenizer", options_.tokenizer == nullptr ? 0 : options_.tokenizer->fingerprint()},
        {"chat", options_.chat == nullptr ? 0 : options_.chat->fingerprint()},
        {"vocabulary", options_.model_vocabulary_size},
        {"format", static_cast<int>(data.format)},
        {"mask", static_cast<int>(data.mask)},
        {"keys", data.keys},
        {"prompt_template", data.prompt_template},
        {"template_arguments", data.template_arguments},
        {"max_tokens", data.max_tokens},
        {"overlength", static_cast<int>(data.overlength)},
        {"bad_rows", static_cast<int>(data.bad_rows)},
        {"add_eos", data.add_eos}};
    // Data prepared by versions without the key stay valid.
    if (data.special_tokens != DataSection::SpecialTokens::kKeep) {
      settings["special_tokens"] = static_cast<int>(data.special_tokens);
    }
    if (data.max_rows > 0) settings["max_rows"] = data.max_rows;
    if (options_.teacher_tokens != DistillOptions().top_k) {
      settings["teacher_tokens"] = options_.teacher_tokens;
    }
    for (const ColumnId column : options_.columns) {
      settings["columns"].push_back(kColumnTable[column].name);
    }
    return hash64(settings.dump());
  }

  void make(const std::string& entry, const std::string& path, uint64_t key) {
    const std::string partial = entry + ".partial";
    const auto go_on = [this] { report_progress(); };
    TokenFileWriter writer(partial, go_on);
    try {
      if (is_text_file(path_)) {
        make_from_text(writer);
      } else {
        make_from_rows(writer);
      }
      if (report_.rows == 0) throw DataError(path_ + ": holds no rows");
      if (!problems_.empty()) refuse(path_, problems_);
      file_->refuse_changes(go_on);
    } catch (const DataError&) {
      remove_tree(partial);            // the data has to change, and the key with it
      file_->refuse_changed_status();  // a reason of the change says less than the change
      throw;
    }
    TokenFileHeader header;
    header.vocabulary_size = static_cast<uint64_t>(options_.model_vocabulary_size);
    header.tokenizer_fingerprint =
        options_.tokenizer == nullptr ? 0 : options_.tokenizer->fingerprint();
    header.key = key;
    writer.finish(path, header, to_json(report_).dump());
  }

  void make_from_text(TokenFileWriter& writer) {
    const DataSection::Format wanted = options_.data.format;
    if (wanted != DataSection::Format::kText && wanted != DataSection::Format::kAuto) {
      throw DataError(path_ +
                      ": a .txt file is a document of the text format, but data.format is " + "\"" +
                      std::string(name_of(wanted)) + "\"");
    }
    if (!rows_.columns.empty()) {
      throw DataError(path_ + ": a .txt file has no rows with \"" +
                      kColumnTable[rows_.columns.front()].member +
                      "\", which train.loss needs; give JSONL");
    }
    const auto format = make_row_format(DataSection::Format::kText, rows_);
    report_.format = format->name();
    report_.detected = wanted == DataSection::Format::kAuto;
    const RowTokenizer tokenizer(&options_.data, format.get(), &rows_);
    const std::string text = read_text_file(file_->from_begin());
    report_progress();
    LongText document(&tokenizer, [&](TokenizedBlock& block) {
      take(block, writer);
      progress_.tokens = writer.tokens();
    });
    const std::optional<PlacedProblem> bad = problem_of(text);
    TokenizedBlock refused;
    refused.counts.rows = 1;
    try {
      if (!bad) {
        RowNotes notes;
        stream_text(text, rows_, &notes, [&](std::span<const TokenId> ids) {
          document.add(ids);
          report_progress();
        });
        report_.special_tokens += notes.special_tokens;
        return document.finish();
      }
      tokenizer.bad_row(bad->line, bad->text, refused);
    } catch (const OverlongText& problem) {
      throw DataError(path_ + ": " + problem.what());
    } catch (const RowProblem& problem) {
      // Documents that were written already cannot be removed.
      if (document.given()) throw DataError(path_ + ": " + problem.what());
      tokenizer.bad_row(0, problem.what(), refused);
    }
    take(refused, writer);
  }

  static std::optional<PlacedProblem> problem_of(const std::string& text) {
    const size_t nul = text.find('\0');
    const size_t bad = std::min(nul, first_invalid_utf8(text).value_or(std::string::npos));
    if (bad == std::string::npos) return std::nullopt;
    const auto end = text.begin() + static_cast<int64_t>(bad);
    return PlacedProblem{.line = 1 + std::count(text.begin(), end, '\n'),
                         .text = bad == nul ? "holds a NUL character" : "not UTF-8"};
  }

  void make_from_rows(TokenFileWriter& writer) {
    DataSection::Format found = options_.data.format;
    report_.detected = found == DataSection::Format::kAuto;
    if (report_.detected) {
      found = detect_file_format(reader_from_begin(), rows_,
                                 options_.data.bad_rows == DataSection::BadRows::kSkip);
    }
    if (found == DataSection::Format::kAuto) {
      const std::string kind = unknown_kind(reader_from_begin());
      if (!kind.empty()) throw DataError(kind);
    }
    std::unique_ptr<RowFormat> format;
    if (found != DataSection::Format::kAuto) {
      format = make_row_format(found, rows_);
      report_.format = format->name();
    }
    JsonlReader reader = reader_from_begin();
    go_on_from(writer.saved_state(), reader);
    const RowTokenizer tokenizer(&options_.data, format.get(), &rows_);
    Bytes saved_at = 0;
    run_pipeline(reader, tokenizer, [&](TokenizedBlock& block) {
      take(block, writer);
      if (problems_.size() >= kMaxProblems) refuse(path_, problems_);
      if (problems_.empty() && block.file_position - saved_at >= options_.save_every_bytes) {
        saved_at = block.file_position;
        file_->refuse_changed_status();
        writer.save({{"lines", block.last_line}, {"report", to_json(report_)}});
      }
      progress_.read_bytes = block.file_position;
      progress_.tokens = writer.tokens();
      report_progress();
    });
  }

  JsonlReader reader_from_begin() const {
    return JsonlReader(file_->from_begin(), options_.data.max_rows);
  }

  // Skips the lines that an earlier process has finished.
  void go_on_from(const Json& state, JsonlReader& reader) {
    if (state.is_null()) return;
    const auto lines = state.at("lines").get<int64_t>();
    report_ = file_report_of(state.at("report"), path_);
    JsonlLine line;
    while (line.number < lines && reader.next(line)) {
      if (line.number % kLinesBetweenReports == 0) report_progress();
    }
    log_info(path_ + ": resuming after line " + std::to_string(lines));
  }

  // Work: a block in the pipeline.
  struct Work {
    std::shared_ptr<RowBlock> rows;
    TokenizedBlock tokens;
  };

  // Long rows need far more memory than blocks of short ones. If the pipeline holds too many bytes,
  // it is emptied and restarted.
  template <typename Use>
  void run_pipeline(JsonlReader& reader, const RowTokenizer& tokenizer, const Use& use) const {
    while (run_until_full(reader, tokenizer, use)) {
    }
  }

  // Returns false at the end of the file.
  template <typename Use>
  bool run_until_full(JsonlReader& reader, const RowTokenizer& tokenizer, const Use& use) const {
    namespace tbb = oneapi::tbb;
    const int threads = options_.threads > 0 ? static_cast<int>(options_.threads)
                                             : tbb::this_task_arena::max_concurrency();
    // The number of blocks in the pipeline bounds its memory.
    const size_t blocks = 3 * static_cast<size_t>(threads);
    tbb::task_arena arena(threads);
    // The blocks stay in `works`, since oneTBB loses those in the pipeline when a filter throws.
    // Blocks end in order, so the one `blocks` before has ended when the next begins.
    std::vector<Work> works(blocks);
    size_t begun = 0;
    const size_t growth = options_.tokenizer == nullptr ? 1 : options_.tokenizer->growth();
    const size_t most = std::max(kMostBytesInPipeline, blocks * kBytesOfABlock) / growth;
    std::atomic<size_t> in_pipeline{0};
    bool at_end = false;
    const auto begin = [&](tbb::flow_control& control) -> Work* {
      Work* work = &works[begun++ % works.size()];
      if (in_pipeline < most) {
        work->rows = read_block(reader, growth);
        at_end = work->rows == nullptr;
        if (!at_end) in_pipeline += work->rows->text.size();
      }
      if (work->rows == nullptr) control.stop();
      return work;
    };
    const auto end = [&](Work* work) {
      use(work->tokens);
      in_pipeline -= work->rows->text.size();
      *work = {};
    };
    const auto tokenize = [&](Work* work) {
      work->tokens = tokenizer.tokenize(*work->rows);
      return work;
    };
    using tbb::filter_mode;
    arena.execute([&] {
      tbb::parallel_pipeline(blocks,
                             tbb::make_filter<void, Work*>(filter_mode::serial_in_order, begin) &
                                 tbb::make_filter<Work*, Work*>(filter_mode::parallel, tokenize) &
                                 tbb::make_filter<Work*, void>(filter_mode::serial_in_order, end));
    });
    return !at_end;
  }

  void take(const TokenizedBlock& block, TokenFileWriter& writer) {
    writer.append(block.tokens);
    report_.add(block.counts);
    problems_.insert(problems_.end(), block.problems.begin(), block.problems.end());
  }

  void report_progress() const {
    if (options_.on_progress) options_.on_progress(progress_);
  }

  const PrepareOptions& options_;
  const RowFormatOptions rows_;
  const std::string path_;
  std::optional<DataFile> file_;
  PrepareProgress progress_;
  uint64_t content_ = 0;  // hash of the file's bytes
  std::string damage_;    // of an entry that cannot be used
  FileReport report_;
  std::vector<PlacedProblem> problems_;
};

std::string nothing_left(const DataReport& report) {
  const FileReport total = report.total();
  return total.path + ": no document is left of " + format_count(total.rows) + " rows (" +
         format_count(total.bad_rows) + " bad ones skipped, " + format_count(total.dropped) +
         " too long ones dropped)";
}

}  // namespace

std::pair<std::string, Json> table_entry(const std::string& entry) {
  const size_t sign = entry.find(" = ");
  LONGSHORE_CHECK(sign != std::string::npos) << entry;
  return {entry.substr(0, sign), parse_json(entry.substr(sign + 3), {}, "run file")};
}

RowFormatOptions row_format_options(const PrepareOptions& options) {
  RowFormatOptions rows;
  rows.tokenizer = options.tokenizer;
  rows.chat = options.chat;
  rows.model_vocabulary_size = options.model_vocabulary_size;
  rows.teacher_tokens = options.teacher_tokens;
  rows.columns = options.columns;
  rows.add_eos = options.data.add_eos;
  rows.mask = options.data.mask;
  rows.prompt_template = options.data.prompt_template;
  rows.special_tokens = options.data.special_tokens;
  for (const std::string& entry : options.data.keys) {
    const auto [member, name] = table_entry(entry);
    if (!name.is_string()) throw ConfigError("data.keys: " + member + ": expected a string");
    rows.keys[member] = name.get<std::string>();
  }
  for (const std::string& entry : options.data.template_arguments) {
    auto [name, value] = table_entry(entry);
    rows.template_arguments[name] = std::move(value);
  }
  return rows;
}

bool is_text_file(const std::string& path) {
  fs::path name = fs::path(path).filename();
  std::string extension = name.extension().string();
  const auto lower = [&extension] {
    for (char& letter : extension) letter = static_cast<char>(std::tolower(letter));
  };
  lower();
  if (extension == ".gz" || extension == ".zst") {
    extension = name.stem().extension().string();
    lower();
  }
  return extension == ".txt";
}

std::string read_text_file(UniqueFd file) {
  const std::string path = file.path();
  const std::unique_ptr<ByteSource> source = make_byte_source(std::move(file));
  const auto too_long = [&path] {
    throw DataError(path + ": the text is longer than the limit of " +
                    format_bytes(kMaxTextFileBytes) + "; write it as JSONL rows");
  };
  std::string text;
  if (const std::optional<Bytes> bytes = source->plain_bytes()) {
    if (*bytes > kMaxTextFileBytes) too_long();
    text.reserve(static_cast<size_t>(*bytes));
  }
  std::vector<char> piece(size_t{1} << 20);
  while (const size_t got = source->read(piece)) {
    text.append(piece.data(), got);
    if (static_cast<Bytes>(text.size()) > kMaxTextFileBytes) too_long();
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  refuse_other_marks(text, path);
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    text[kept++] = text[i];
  }
  text.resize(kept);
  return text;
}

PreparedData prepare_or_open(const PrepareOptions& options) {
  LONGSHORE_CHECK(options.data.max_tokens >= 2) << options.data.max_tokens;
  make_directories(options.cache);
  PreparedData prepared;
  for (const std::string& path : options.files) {
    std::string made = FilePreparer(options, path).run(prepared);
    prepared.paths.push_back(std::move(made));
  }
  if (prepared.report.total().documents == 0) throw DataError(nothing_left(prepared.report));
  return prepared;
}

std::optional<DataReport> report_of_prepared(const PrepareOptions& options) {
  PreparedData prepared;
  for (const std::string& path : options.files) {
    if (!FilePreparer(options, path).find(prepared)) return std::nullopt;
  }
  return prepared.report;
}

}  // namespace longshore
