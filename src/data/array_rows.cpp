#include "data/array_rows.h"

#include <algorithm>
#include <cstdint>

#include "base/errors.h"

namespace longshore {
namespace {

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

std::unique_ptr<ByteSource> make_array_rows(std::string front, std::unique_ptr<ByteSource> source,
                                            const std::string& path) {
  return std::make_unique<ArrayRows>(std::move(front), std::move(source), path);
}

}  // namespace longshore
