// MappedFile: a read-only memory mapping of a file. Immutable; any thread may read. The file must
// not be truncated while it is mapped. Files that are created by rename never are.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace longshore {

class MappedFile {
 public:
  // Throws IoError if the file cannot be opened or mapped.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace longshore
