// ByteSource: the bytes of a data file from first to last, whether it is plain or compressed with
// gzip or zstd, which its first bytes tell. One owner thread, bounded memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `into`; fewer bytes than it holds only at the end, then 0. DataError for
  // damaged or cut-off compressed data.
  virtual size_t read(std::span<char> into) = 0;
  // Bytes of the file itself read so far, for progress.
  virtual Bytes file_position() const = 0;
};

// DataError where there is no such file; it names the absolute path.
std::unique_ptr<ByteSource> open_byte_source(const std::string& path);

}  // namespace longshore
