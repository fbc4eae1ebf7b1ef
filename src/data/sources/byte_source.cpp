#include "data/sources/byte_source.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kInputBytes = size_t{256} << 10;
// zstd frames may ask for windows of up to 2 GiB; this code accepts 2^27 bytes (128 MiB).
constexpr int kMaxZstdWindowLog = 27;
// Texts compress 3 to 10 times, tables with identical rows up to 200 times.
constexpr Bytes kMaxExpansion = 800;
constexpr Bytes kAlwaysExpanded = 64 * kMiB;

size_t read_some(const UniqueFd& fd, std::span<char> into) {
  while (true) {
    const ssize_t got = ::read(fd.get(), into.data(), into.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) throw IoError("read", fd.path(), errno);
  }
}

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(UniqueFd fd) : fd_(std::move(fd)), bytes_(file_bytes(fd_)) {}
  std::optional<Bytes> plain_bytes() const override { return bytes_; }
  size_t read(std::span<char> into) override {
    size_t filled = 0;
    while (filled < into.size()) {
      const size_t got = read_some(fd_, into.subspan(filled));
      if (got == 0) break;
      filled += got;
    }
    position_ += static_cast<Bytes>(filled);
    return filled;
  }
  Bytes file_position() const override { return position_; }

 private:
  UniqueFd fd_;
  Bytes bytes_;
  Bytes position_ = 0;
};

// CompressedSource: the buffer of compressed bytes, shared by both formats.
class CompressedSource : public ByteSource {
 public:
  explicit CompressedSource(UniqueFd fd)
      : fd_(std::move(fd)), expansion_(fd_.path()), input_(kInputBytes) {}
  Bytes file_position() const override { return position_; }

 protected:
  // Called only if all input is used up. Returns false at the end of the file.
  bool refill() {
    begin_ = 0;
    end_ = read_some(fd_, input_);
    position_ += static_cast<Bytes>(end_);
    return end_ > 0;
  }
  bool used_up() const { return begin_ == end_; }
  void expanded_by(size_t bytes) { expansion_.add(bytes, position_); }
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fd_.path() + ": " + what + " after " + std::to_string(position_) +
                    " bytes of the file; it is damaged or cut off");
  }

  UniqueFd fd_;
  ExpansionLimit expansion_;
  std::vector<char> input_;
  size_t begin_ = 0, end_ = 0;  // unused bytes of input_
  Bytes position_ = 0;
};

class GzipSource : public CompressedSource {
 public:
  explicit GzipSource(UniqueFd fd) : CompressedSource(std::move(fd)) {
    // 16 makes zlib expect a gzip header and nothing else.
    LONGSHORE_CHECK(inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK);
  }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;
  ~GzipSource() override { inflateEnd(&stream_); }

  size_t read(std::span<char> into) override {
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(into.size());
    while (stream_.avail_out > 0) {
      if (used_up() && !refill()) {
        if (inside_) refuse("the gzip data ends too early");
        break;
      }
      // A file may consist of several gzip members.
      if (!inside_) {
        LONGSHORE_CHECK(inflateReset(&stream_) == Z_OK);
      }
      inside_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + begin_);
      stream_.avail_in = static_cast<uInt>(end_ - begin_);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      begin_ = end_ - stream_.avail_in;
      if (result == Z_STREAM_END) {
        inside_ = false;
      } else if (result != Z_OK) {
        refuse("the gzip data is wrong");
      }
    }
    expanded_by(into.size() - stream_.avail_out);
    return into.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool inside_ = false;  // a member has begun and not ended
};

struct FreeZstd {
  void operator()(ZSTD_DStream* stream) const noexcept { ZSTD_freeDStream(stream); }
};

class ZstdSource : public CompressedSource {
 public:
  explicit ZstdSource(UniqueFd fd)
      : CompressedSource(std::move(fd)), stream_(ZSTD_createDStream()) {
    LONGSHORE_CHECK(stream_ != nullptr);
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxZstdWindowLog);
  }

  size_t read(std::span<char> into) override {
    ZSTD_outBuffer out = {into.data(), into.size(), 0};
    while (out.pos < out.size) {
      if (used_up() && !refill()) {
        if (inside_) refuse("the zstd data ends too early");
        break;
      }
      ZSTD_inBuffer in = {input_.data(), end_, begin_};
      const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(result) != 0) {
        refuse(std::string("the zstd data is wrong (") + ZSTD_getErrorName(result) + ")");
      }
      begin_ = in.pos;
      inside_ = result != 0;
    }
    expanded_by(out.pos);
    return out.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, FreeZstd> stream_;
  bool inside_ = false;  // a frame has begun and not ended
};

}  // namespace

void ExpansionLimit::add(size_t bytes, Bytes position) {
  expanded_ += static_cast<Bytes>(bytes);
  if (expanded_ <= kAlwaysExpanded || expanded_ / kMaxExpansion <= position) return;
  throw DataError(path_ + ": " + std::to_string(position) + " compressed bytes became more than " +
                  format_bytes(expanded_) +
                  ", which no text does; decompress the file if that is what it should hold");
}

// Refuses files of other kinds, which readers of text would call damaged. Parquet and compressed
// files pass.
void refuse_other_kinds(const UniqueFd& fd) {
  using namespace std::string_view_literals;
  struct Kind {
    std::string_view magic;
    const char* text;
  };
  constexpr const char* kArrow =
      "an Arrow file, as datasets.save_to_disk writes; write its directory as Parquet once: "
      "datasets.load_from_disk(DIRECTORY).to_parquet(\"rows.parquet\")";
  constexpr const char* kTable =
      "; write its rows as Parquet or JSONL once, for example with pandas: "
      "DataFrame.to_parquet(\"rows.parquet\")";
  static constexpr std::array<Kind, 6> kKinds = {{{"ARROW1"sv, kArrow},
                                                  {"\xFF\xFF\xFF\xFF"sv, kArrow},
                                                  {"PK\x03\x04"sv, "a zip archive or workbook"},
                                                  {"SQLite format 3\0"sv, "an SQLite database"},
                                                  {"\x89HDF"sv, "an HDF5 file"},
                                                  {"Obj\x01"sv, "an Avro file"}}};
  std::array<char, 64> begin{};
  const ssize_t got = ::pread(fd.get(), begin.data(), begin.size(), 0);
  const std::string_view front(begin.data(), got > 0 ? static_cast<size_t>(got) : 0);
  refuse_lfs_pointer(front, fd.path());
  for (const Kind& kind : kKinds) {
    if (!front.starts_with(kind.magic)) continue;
    throw DataError(fd.path() + ": " + kind.text + (kind.text == kArrow ? "" : kTable));
  }
}

UniqueFd open_data_file(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  if (!std::filesystem::exists(absolute, ignored)) {
    throw DataError(path + ": no such file (looked for " + absolute.string() + ")");
  }
  if (std::filesystem::is_directory(absolute, ignored)) {
    throw DataError(path + ": is a directory; name the files in it");
  }
  if (!std::filesystem::is_regular_file(absolute, ignored)) {
    throw DataError(path + ": is no regular file; write what a pipe or device gives to a file");
  }
  UniqueFd fd = open_for_reading(path);
  // A hole reads as NULs, possibly terabytes of them.
  const off_t hole = ::lseek(fd.get(), 0, SEEK_HOLE);
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) throw IoError("seek", path, errno);
  if (hole >= 0 && static_cast<Bytes>(hole) < file_bytes(fd)) {
    throw DataError(path + ": nothing was written from byte " + std::to_string(hole) +
                    " on; the file was cut off, or is no text");
  }
  refuse_other_kinds(fd);
  return fd;
}

std::unique_ptr<ByteSource> make_byte_source(UniqueFd fd) {
  std::array<unsigned char, 4> magic{};
  const ssize_t got = ::pread(fd.get(), magic.data(), magic.size(), 0);
  if (got >= 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
    return std::make_unique<GzipSource>(std::move(fd));
  }
  if (got == 4 && magic == std::array<unsigned char, 4>{0x28, 0xb5, 0x2f, 0xfd}) {
    return std::make_unique<ZstdSource>(std::move(fd));
  }
  return std::make_unique<PlainSource>(std::move(fd));
}

void refuse_other_marks(std::string_view text, const std::string& path) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw DataError(path + ":1: begins with two byte order marks; remove both");
  }
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw DataError(path + ":1: the file is UTF-16; convert it to UTF-8");
  }
}

}  // namespace longshore
