#include "data/dataset_loader.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/utf8.h"
#include "data/in_memory_dataset.h"
#include "data/jsonl_reader.h"
#include "data/row_format.h"

namespace longshore {
namespace {

constexpr size_t kMaxProblems = 10;
constexpr Bytes kMaxTextFileBytes = kGiB;
constexpr int64_t kRowsPerProgress = 256;

bool is_text_file(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  for (char& letter : extension) letter = static_cast<char>(std::tolower(letter));
  return extension == ".txt";
}

std::string at_line(const std::string& path, int64_t line) {
  return path + ":" + std::to_string(line);
}

// A row as JSON; RowProblem says why it is none.
Json parse_row(const JsonlLine& line) {
  if (line.too_long) {
    throw RowProblem("the line is longer than the limit of " + format_bytes(kMaxLineBytes));
  }
  try {
    return parse_json(line.text, {}, {});
  } catch (const DataError& error) {
    // The place in a text without a name is ":1: ", its only line.
    std::string reason = error.what();
    if (reason.starts_with(":1: ")) reason.erase(0, 4);
    if (!line.ended) reason += "; the file ends inside this row, is it cut off?";
    throw RowProblem(reason);
  }
}

// Line breaks as line feeds, without a byte order mark.
std::string read_text_file(const std::string& path) {
  JsonlReader{path};  // refuses a missing file and UTF-16
  std::string text = read_whole_file(path, kMaxTextFileBytes);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    text[kept++] = text[i];
  }
  text.resize(kept);
  return text;
}

std::optional<size_t> first_bad_byte(const std::string& text) {
  const size_t nul = text.find('\0');
  const std::optional<size_t> invalid = first_invalid_utf8(text);
  if (nul == std::string::npos) return invalid;
  return std::min(nul, invalid.value_or(nul));
}

class Loader {
 public:
  explicit Loader(const DatasetLoadOptions& options)
      : options_(options),
        format_options_{options.tokenizer, options.model_vocabulary_size, options.data.add_eos},
        dataset_(std::make_unique<InMemoryDataset>()) {}

  LoadedData load() {
    for (const std::string& path : options_.files) load_file(path);
    if (!problems_.empty()) refuse();
    if (dataset_->document_count() == 0) throw DataError(nothing_left());
    return {std::move(dataset_), std::move(report_)};
  }

 private:
  void load_file(const std::string& path) {
    report_.files.emplace_back().path = path;
    if (is_text_file(path)) {
      load_text_file(path);
    } else {
      load_rows(path);
    }
    bytes_of_earlier_files_ += bytes_of_file_;
    bytes_of_file_ = 0;
    if (file().rows == 0) throw DataError(path + ": holds no rows");
  }

  void load_text_file(const std::string& path) {
    if (options_.data.format == DataSection::Format::kTokens) {
      throw DataError(path + ": a .txt file is a document of the text format, but data.format is " +
                      "\"tokens\"");
    }
    format_ = make_row_format(DataSection::Format::kText, format_options_);
    file().format = format_->name();
    file().detected = options_.data.format == DataSection::Format::kAuto;
    const std::string text = read_text_file(path);
    progress(static_cast<Bytes>(text.size()));
    file().rows = 1;
    if (const std::optional<size_t> bad = first_bad_byte(text)) {
      const auto end = text.begin() + static_cast<int64_t>(*bad);
      bad_row(at_line(path, 1 + std::count(text.begin(), end, '\n')),
              *end == '\0' ? "holds a NUL character" : "not UTF-8");
      return;
    }
    try {
      take(read_text(text, format_options_), path);
    } catch (const RowProblem& problem) {
      bad_row(path, problem.what());
    }
  }

  void load_rows(const std::string& path) {
    JsonlReader reader(path);
    format_.reset();
    if (options_.data.format != DataSection::Format::kAuto) set_format(options_.data.format);
    JsonlLine line;
    while (reader.next(line)) {
      if (line.blank() && !line.too_long) continue;
      ++file().rows;
      if (file().rows % kRowsPerProgress == 0) progress(reader.position());
      const std::string place = at_line(path, line.number);
      try {
        const Json row = parse_row(line);
        if (!format_) detect(row);
        take(format_->read_row(row), place);
      } catch (const RowProblem& problem) {
        bad_row(place, problem.what());
      }
    }
    progress(reader.position());
  }

  void detect(const Json& row) {
    set_format(detect_format(row));
    file().detected = true;
  }

  void set_format(DataSection::Format format) {
    format_ = make_row_format(format, format_options_);
    file().format = format_->name();
  }

  void take(Document document, const std::string& place) {
    const int64_t tokens = static_cast<int64_t>(document.tokens.size());
    file().longest_row_tokens = std::max(file().longest_row_tokens, tokens);
    if (tokens <= options_.data.max_tokens) {
      if (add(document.tokens, document.labels) == 0) throw RowProblem("no token is trained");
      return;
    }
    take_overlength(document, place);
  }

  void take_overlength(Document& document, const std::string& place) {
    const int64_t tokens = static_cast<int64_t>(document.tokens.size());
    const int64_t max_tokens = options_.data.max_tokens;
    const std::string limit = "data.max_tokens = " + std::to_string(max_tokens);
    switch (options_.data.overlength) {
      case DataSection::Overlength::kError:
        add_problem(place, std::to_string(tokens) + " tokens, more than " + limit +
                               "; raise it, or set data.overlength to \"truncate\", \"drop\" or " +
                               "\"split\"");
        return;
      case DataSection::Overlength::kDrop:
        ++file().dropped;
        return;
      case DataSection::Overlength::kTruncate:
        document.tokens.resize(static_cast<size_t>(max_tokens));
        document.labels.resize(static_cast<size_t>(max_tokens));
        if (add(document.tokens, document.labels) == 0) {
          throw RowProblem("no trained token is left after truncation to " + limit);
        }
        ++file().truncated;
        return;
      case DataSection::Overlength::kSplit:
        if (add_pieces(document) == 0) throw RowProblem("no token is trained");
        ++file().split;
        return;
    }
  }

  // Pieces without a trained token are left out: they would change neither loss nor gradients.
  int64_t add_pieces(const Document& document) {
    const std::span<const TokenId> tokens(document.tokens), labels(document.labels);
    const size_t piece = static_cast<size_t>(options_.data.max_tokens);
    int64_t trained = 0;
    for (size_t first = 0; first < tokens.size(); first += piece) {
      const size_t count = std::min(piece, tokens.size() - first);
      trained += add(tokens.subspan(first, count), labels.subspan(first, count));
    }
    return trained;
  }

  int64_t add(std::span<const TokenId> tokens, std::span<const TokenId> labels) {
    const int64_t trained = dataset_->add(tokens, labels);
    if (trained == 0) return 0;
    ++file().documents;
    file().tokens += static_cast<int64_t>(tokens.size());
    file().trained_tokens += trained;
    return trained;
  }

  void bad_row(const std::string& place, const std::string& what) {
    ++file().bad_rows;
    if (options_.data.bad_rows == DataSection::BadRows::kError) add_problem(place, what);
  }

  void add_problem(const std::string& place, const std::string& what) {
    problems_.push_back(place + ": " + what);
    if (problems_.size() == kMaxProblems) refuse();
  }

  [[noreturn]] void refuse() const {
    std::string text;
    for (const std::string& problem : problems_) text += (text.empty() ? "" : "\n") + problem;
    if (problems_.size() == kMaxProblems) text += "\nthere may be more; reading stopped here";
    throw DataError(text);
  }

  std::string nothing_left() const {
    const FileReport total = report_.total();
    return total.path + ": no document is left of " + std::to_string(total.rows) + " rows (" +
           std::to_string(total.bad_rows) + " bad ones skipped, " + std::to_string(total.dropped) +
           " too long ones dropped)";
  }

  void progress(Bytes bytes_of_file) {
    bytes_of_file_ = bytes_of_file;
    if (options_.on_progress) options_.on_progress(bytes_of_earlier_files_ + bytes_of_file_);
  }

  FileReport& file() { return report_.files.back(); }

  const DatasetLoadOptions& options_;
  const RowFormatOptions format_options_;
  std::unique_ptr<InMemoryDataset> dataset_;
  std::unique_ptr<RowFormat> format_;  // of the current file; absent until it is known
  DataReport report_;
  std::vector<std::string> problems_;
  Bytes bytes_of_earlier_files_ = 0;
  Bytes bytes_of_file_ = 0;
};

void append_count(std::string& line, int64_t count, const std::string& what) {
  if (count > 0) line += ", " + std::to_string(count) + " " + what;
}

}  // namespace

FileReport DataReport::total() const {
  FileReport total;
  for (const FileReport& file : files) {
    total.path += (total.path.empty() ? "" : ", ") + file.path;
    total.rows += file.rows;
    total.bad_rows += file.bad_rows;
    total.truncated += file.truncated;
    total.dropped += file.dropped;
    total.split += file.split;
    total.documents += file.documents;
    total.tokens += file.tokens;
    total.trained_tokens += file.trained_tokens;
    total.longest_row_tokens = std::max(total.longest_row_tokens, file.longest_row_tokens);
  }
  return total;
}

std::vector<std::string> DataReport::lines() const {
  std::vector<std::string> lines;
  for (const FileReport& file : files) {
    std::string line = file.path + ": format " + file.format + (file.detected ? " (auto), " : ", ");
    line += std::to_string(file.rows) + " rows, " + std::to_string(file.documents) +
            " documents, " + std::to_string(file.tokens) + " tokens, " +
            std::to_string(file.trained_tokens) + " of them trained, longest row " +
            std::to_string(file.longest_row_tokens);
    append_count(line, file.bad_rows, "bad rows skipped");
    append_count(line, file.truncated, "truncated");
    append_count(line, file.dropped, "dropped as too long");
    append_count(line, file.split, "split");
    lines.push_back(line);
  }
  return lines;
}

LoadedData load_dataset(const DatasetLoadOptions& options) {
  LONGSHORE_CHECK(options.data.max_tokens >= 2) << options.data.max_tokens;
  return Loader(options).load();
}

}  // namespace longshore
