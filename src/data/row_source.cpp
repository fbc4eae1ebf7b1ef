#include "data/row_source.h"

#include <parquet_c.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/errors.h"
#include "base/file.h"
#include "data/array_rows.h"

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

}  // namespace

std::unique_ptr<ByteSource> open_row_source(const std::string& path) {
  UniqueFd fd = open_data_file(path);
  if (is_parquet(fd)) return std::make_unique<ParquetRows>(fd);
  std::unique_ptr<ByteSource> source = make_byte_source(std::move(fd));
  std::string front(kFrontBytes, '\0');
  front.resize(source->read(front));
  if (opens_array(front)) return make_array_rows(std::move(front), std::move(source), path);
  return std::make_unique<WithFront>(std::move(front), std::move(source));
}

}  // namespace longshore
