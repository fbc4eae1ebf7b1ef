// ByteSource: the bytes of a data file from first to last, whether it is plain or compressed with
// gzip or zstd, which its first bytes tell. One owner thread, bounded memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `into`; fewer bytes than it holds only at the end, then 0. DataError for
  // damaged or cut-off compressed data, and for data that expand beyond every text's measure.
  virtual size_t read(std::span<char> into) = 0;
  // The bytes there are to read, where that is known.
  virtual std::optional<Bytes> plain_bytes() const { return std::nullopt; }
  // Bytes of the file itself read so far, for progress.
  virtual Bytes file_position() const = 0;
};

// DataError where there is no such file, naming the absolute path, and for what is no regular file
// or has a hole, which neither text nor table has.
UniqueFd open_data_file(const std::string& path);

std::unique_ptr<ByteSource> make_byte_source(UniqueFd fd);

inline std::unique_ptr<ByteSource> open_byte_source(const std::string& path) {
  return make_byte_source(open_data_file(path));
}

// What compressed data may become: DataError for more than any text does.
class ExpansionLimit {
 public:
  explicit ExpansionLimit(std::string path) : path_(std::move(path)) {}
  // `bytes` more came out of the file's first `position` bytes.
  void add(size_t bytes, Bytes position);

 private:
  std::string path_;
  Bytes expanded_ = 0;
};

// DataError for a text, without its byte order mark, that begins with another: it was marked twice,
// or is UTF-16.
void refuse_other_marks(std::string_view text, const std::string& path);

}  // namespace longshore
