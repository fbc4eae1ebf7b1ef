#include "data/jsonl_reader.h"

#include "base/errors.h"
#include "data/row_source.h"

namespace longshore {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

}  // namespace

JsonlReader::JsonlReader(const std::string& path) : path_(path), source_(open_row_source(path)) {
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

}  // namespace longshore
