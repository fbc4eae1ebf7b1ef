// ByteSource: reads a data file's bytes in order. The first bytes of the file show whether it is
// plain or compressed with gzip or zstd. One owner thread, bounded memory.
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
  // Fills `into` and returns the number of bytes; fewer than its size only at the end of the data,
  // then 0. Throws DataError if compressed data are damaged, cut off, or expand more than text can.
  virtual size_t read(std::span<char> into) = 0;
  // Returns the number of uncompressed bytes if it is known.
  virtual std::optional<Bytes> plain_bytes() const { return std::nullopt; }
  // Returns the bytes of the file read so far (compressed ones if it is compressed), for progress.
  virtual Bytes file_position() const = 0;
};

// Throws DataError if the file does not exist (with its absolute path), is no regular file, or has
// a hole, which valid data files do not have.
UniqueFd open_data_file(const std::string& path);

std::unique_ptr<ByteSource> make_byte_source(UniqueFd fd);

// ExpansionLimit: throws DataError if compressed data expand more than text can.
class ExpansionLimit {
 public:
  explicit ExpansionLimit(std::string path) : path_(std::move(path)) {}
  // `bytes` more bytes were decompressed; the file has been read up to offset `position`.
  void add(size_t bytes, Bytes position);

 private:
  std::string path_;
  Bytes expanded_ = 0;
};

// Throws DataError if a text, after its byte order mark was removed, begins with another mark. Such
// a text was marked twice or is UTF-16.
void refuse_other_marks(std::string_view text, const std::string& path);

}  // namespace longshore
