// MappedFile: a file's bytes in memory, read-only, as the kernel pages them in. Immutable; any
// thread may read. The file must not be shortened while it is mapped: nobody does that to files
// that come into being by a rename.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace longshore {

class MappedFile {
 public:
  // IoError where it cannot be opened or mapped.
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
