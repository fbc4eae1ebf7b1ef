#include "base/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/errors.h"
#include "base/file.h"

namespace longshore {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const UniqueFd fd = open_for_reading(path);
  size_bytes_ = static_cast<size_t>(file_bytes(fd));
  if (size_bytes_ == 0) return;
  void* mapped = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) throw IoError("map", path, errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

}  // namespace longshore
