#include "data/sources/row_source.h"

#include <parquet_c.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"

namespace longshore {
namespace {

constexpr size_t kFrontBytes = size_t{64} << 10;
constexpr size_t kLinesBytes = size_t{256} << 10;

std::string take_text(parqc_string text) {
  std::string copy(reinterpret_cast<const char*>(text.data), text.size);
  parqc_string_free(text);
  return copy;
}

struct FreeReader {
  void operator()(parqc_reader* reader) const noexcept { parqc_free(reader); }
};

class ParquetRows : public ByteSource {
 public:
  explicit ParquetRows(const UniqueFd& fd) : path_(fd.path()), expansion_(fd.path()) {
    const int own = ::dup(fd.get());
    if (own < 0) throw IoError("open", path_, errno);
    parqc_reader* reader = nullptr;
    parqc_string error{};
    if (parqc_open(own, &reader, &error) != 0) throw DataError(path_ + ": " + take_text(error));
    reader_.reset(reader);
  }

  size_t read(std::span<char> into) override {
    size_t filled = 0;
    while (filled < into.size()) {
      if (begin_ == lines_.size() && !refill()) break;
      const size_t count = std::min(into.size() - filled, lines_.size() - begin_);
      std::memcpy(into.data() + filled, lines_.data() + begin_, count);
      begin_ += count;
      filled += count;
    }
    return filled;
  }
  Bytes file_position() const override { return position_; }

 private:
  bool refill() {
    parqc_string lines{}, error{};
    uint64_t position = 0;
    if (parqc_next(reader_.get(), kLinesBytes, &lines, &position, &error) != 0) {
      throw DataError(path_ + ": " + take_text(error));
    }
    lines_ = take_text(lines);
    begin_ = 0;
    position_ = static_cast<Bytes>(position);
    expansion_.add(lines_.size(), position_);
    return !lines_.empty();
  }

  std::string path_;
  ExpansionLimit expansion_;
  std::unique_ptr<parqc_reader, FreeReader> reader_;
  std::string lines_;
  size_t begin_ = 0;
  Bytes position_ = 0;
};

// WithFront: a source whose first bytes were read before.
class WithFront : public ByteSource {
 public:
  WithFront(std::string front, std::unique_ptr<ByteSource> source)
      : front_(std::move(front)), source_(std::move(source)) {}

  size_t read(std::span<char> into) override {
    const size_t count = std::min(into.size(), front_.size() - begin_);
    std::memcpy(into.data(), front_.data() + begin_, count);
    begin_ += count;
    return count + (count < into.size() ? source_->read(into.subspan(count)) : 0);
  }
  std::optional<Bytes> plain_bytes() const override { return source_->plain_bytes(); }
  Bytes file_position() const override { return source_->file_position(); }

 private:
  std::string front_;
  size_t begin_ = 0;
  std::unique_ptr<ByteSource> source_;
};

bool is_parquet(const UniqueFd& fd) {
  std::array<char, 4> magic{};
  return ::pread(fd.get(), magic.data(), magic.size(), 0) == 4 &&
         std::string_view(magic.data(), magic.size()) == "PAR1";
}

bool opens_array(std::string_view front) {
  if (front.starts_with("\xEF\xBB\xBF")) front.remove_prefix(3);
  const size_t first = front.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && front[first] == '[';
}

constexpr size_t kChunkBytes = size_t{1} << 20;
// JSON strings may not hold this byte: it replaces a line feed in a string, so that row is refused.
constexpr char kControl = '\x1f';

bool is_blank(char letter) {
  return letter == ' ' || letter == '\t' || letter == '\r' || letter == '\n';
}

class ArrayRows : public ByteSource {
 public:
  ArrayRows(std::string front, std::unique_ptr<ByteSource> source, std::string path)
      : path_(std::move(path)), source_(std::move(source)), input_(std::move(front)) {
    begin_ = input_.find('[') + 1;
  }

  size_t read(std::span<char> into) override {
    size_t filled = 0;
    while (filled < into.size()) {
      if (begin_ == input_.size() && !refill()) break;
      filled += take(into.subspan(filled));
    }
    return filled;
  }
  Bytes file_position() const override { return source_->file_position(); }

 private:
  bool refill() {
    input_.resize(kChunkBytes);
    input_.resize(source_->read(input_));
    begin_ = 0;
    if (!input_.empty()) return true;
    if (!ended_) throw DataError(place() + "the array does not end; is the file cut off?");
    return false;
  }

  std::string place() const { return path_ + ":" + std::to_string(row_) + ": "; }

  // One input byte becomes at most one output byte.
  size_t take(std::span<char> into) {
    size_t out = 0;
    while (begin_ < input_.size() && out < into.size()) {
      const char letter = input_[begin_++];
      if (ended_) {
        if (is_blank(letter)) continue;
        throw DataError(place() + "there is more behind the end of the array");
      }
      into[out] = in_string_ ? inside_string(letter) : between(letter);
      if (!ended_ && (in_string_ || !is_blank(letter) || into[out] == '\n')) ++out;
      if (ended_ && row_has_bytes_) into[out++] = '\n';
    }
    return out;
  }

  char inside_string(char letter) {
    if (escaped_) {
      escaped_ = false;
    } else if (letter == '\\') {
      escaped_ = true;
    } else if (letter == '"') {
      in_string_ = false;
    }
    return letter == '\n' ? kControl : letter;
  }

  // Handles a byte outside of strings, where blanks have no meaning.
  char between(char letter) {
    if (is_blank(letter)) return ' ';
    const bool closes = letter == ']' || letter == '}';
    if (depth_ == 0 && (letter == ',' || closes)) {
      if (letter == '}') throw DataError(place() + "a brace that nothing opened");
      if (!row_has_bytes_ && (letter == ',' || row_ > 1)) {
        throw DataError(place() + "the array has no element between two commas");
      }
      ended_ = letter == ']';
      if (!ended_) {
        ++row_;
        row_has_bytes_ = false;
      }
      return '\n';
    }
    row_has_bytes_ = true;
    in_string_ = letter == '"';
    if (closes) --depth_;
    if (letter == '[' || letter == '{') ++depth_;
    return letter;
  }

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::string input_;
  size_t begin_ = 0;
  int64_t row_ = 1;
  int64_t depth_ = 0;  // brackets and braces open in the element
  bool row_has_bytes_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_row_source(UniqueFd file) {
  if (is_parquet(file)) return std::make_unique<ParquetRows>(file);
  const std::string path = file.path();
  std::unique_ptr<ByteSource> source = make_byte_source(std::move(file));
  std::string front(kFrontBytes, '\0');
  front.resize(source->read(front));
  if (opens_array(front)) return make_array_rows(std::move(front), std::move(source), path);
  return std::make_unique<WithFront>(std::move(front), std::move(source));
}

std::unique_ptr<ByteSource> make_array_rows(std::string front, std::unique_ptr<ByteSource> source,
                                            const std::string& path) {
  return std::make_unique<ArrayRows>(std::move(front), std::move(source), path);
}

JsonlReader::JsonlReader(UniqueFd file, int64_t max_rows)
    : path_(file.path()), source_(open_row_source(std::move(file))), max_rows_(max_rows) {
  skip_byte_order_mark();
}

void JsonlReader::skip_byte_order_mark() {
  while (buffer_.size() < 6 && refill()) {
  }
  if (buffer_.starts_with("\xEF\xBB\xBF")) begin_ = 3;
  refuse_other_marks(std::string_view(buffer_).substr(begin_), path_);
}

// Adds a chunk to the buffer; returns false at the end of the file.
bool JsonlReader::refill() {
  if (at_end_) return false;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t old_bytes = buffer_.size();
  buffer_.resize(old_bytes + kChunkBytes);
  const size_t got = source_->read(std::span<char>(buffer_.data() + old_bytes, kChunkBytes));
  buffer_.resize(old_bytes + got);
  at_end_ = got == 0;
  return !at_end_;
}

// Drops bytes up to and including the next line feed; returns false if the file ends before one.
bool JsonlReader::pass_over_line() {
  while (true) {
    const size_t feed = buffer_.find('\n', begin_);
    if (feed != std::string::npos) {
      begin_ = feed + 1;
      return true;
    }
    begin_ = buffer_.size();
    if (!refill()) return false;
  }
}

bool JsonlReader::next(JsonlLine& line) {
  if (max_rows_ > 0 && rows_ == max_rows_) return false;
  if (!next_line(line)) return false;
  rows_ += line.too_long || !line.blank() ? 1 : 0;
  return true;
}

bool JsonlReader::next_line(JsonlLine& line) {
  size_t searched = 0;  // bytes after begin_ that hold no line feed
  while (true) {
    const size_t feed = buffer_.find('\n', begin_ + searched);
    const bool ended = feed != std::string::npos;
    const size_t bytes = (ended ? feed : buffer_.size()) - begin_;
    if (static_cast<Bytes>(bytes) > kMaxLineBytes) {
      line = {++line_number_, {}, true, pass_over_line()};
      return true;
    }
    if (!ended) {
      searched = bytes;
      if (refill()) continue;
      if (bytes == 0) return false;
    }
    std::string_view text(buffer_.data() + begin_, bytes);
    begin_ += bytes + (ended ? 1 : 0);
    if (text.ends_with('\r')) text.remove_suffix(1);
    line = {++line_number_, text, false, ended};
    return true;
  }
}

namespace {

constexpr Bytes kMaxTextBytes = kGiB;

void read_rows(const std::string& path, const std::function<void(std::string_view)>& use) {
  JsonlReader reader(path);
  JsonlLine line;
  while (reader.next(line)) {
    if (line.blank() && !line.too_long) continue;
    const std::string where = path + ":" + std::to_string(line.number);
    if (line.too_long) throw DataError(where + ": the line is longer than 16 MiB");
    const Json row = parse_json(line.text, JsonLimits{}, where);
    const auto text = row.is_object() ? row.find("text") : row.end();
    if (!row.is_object() || text == row.end() || !text->is_string()) {
      throw DataError(where + ": expected an object with a string \"text\"");
    }
    use(text->get_ref<const std::string&>());
  }
}

}  // namespace

void for_each_text(const std::vector<std::string>& files,
                   const std::function<void(std::string_view)>& use) {
  for (const std::string& path : files) {
    if (std::filesystem::path(path).extension() == ".jsonl") {
      read_rows(path, use);
    } else {
      use(read_whole_file(path, kMaxTextBytes));
    }
  }
}

}  // namespace longshore
