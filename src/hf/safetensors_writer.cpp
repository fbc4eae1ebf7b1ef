#include "hf/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

UniqueFd create_new_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644), path);
  if (!fd.valid()) throw IoError("create", path, errno);
  return fd;
}

// Detects a full disk before the first byte. If that is unsupported, writes detect it.
void reserve(const UniqueFd& fd, Bytes bytes) {
  if (bytes == 0 || ::fallocate(fd.get(), 0, 0, bytes) == 0) return;
  if (errno == ENOSPC || errno == EFBIG || errno == EDQUOT) {
    throw IoError("reserve " + format_bytes(bytes) + " for", fd.path(), errno);
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors,
                                     const SafetensorsMetadata& metadata) {
  tensors_.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    tensors_.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  }
  const std::string header = format_safetensors_header(metadata, tensors_);
  result_.file_bytes = static_cast<Bytes>(header.size());
  for (const TensorInfo& tensor : tensors_) result_.file_bytes += tensor.bytes;

  fd_ = create_new_file(path);
  try {
    reserve(fd_, result_.file_bytes);
    buffer_.reserve(kBufferBytes);
    progress_.emplace("writing " + path.substr(path.rfind('/') + 1), result_.file_bytes);
    buffer(bytes_of(header));
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  close_complete_tensors();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_.valid()) ::unlink(fd_.path().c_str());
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  LONGSHORE_CHECK(fd_.valid()) << "append after finish";
  while (!bytes.empty()) {
    LONGSHORE_CHECK(current_ < tensors_.size()) << bytes.size() << " bytes too many";
    const Bytes missing = tensors_[current_].bytes - current_bytes_;
    const auto part = bytes.first(std::min(bytes.size(), static_cast<size_t>(missing)));
    tensor_hasher_.update(part);
    buffer(part);
    current_bytes_ += static_cast<Bytes>(part.size());
    bytes = bytes.subspan(part.size());
    close_complete_tensors();
  }
}

void SafetensorsWriter::close_complete_tensors() {
  while (current_ < tensors_.size() && current_bytes_ == tensors_[current_].bytes) {
    result_.tensor_hashes.push_back(tensor_hasher_.digest());
    tensor_hasher_ = Hasher();
    ++current_;
    current_bytes_ = 0;
  }
}

void SafetensorsWriter::buffer(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    write_out(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void SafetensorsWriter::flush() {
  write_out(buffer_);
  buffer_.clear();
}

void SafetensorsWriter::write_out(std::span<const std::byte> bytes) {
  file_hasher_.update(bytes);
  write_all(fd_, bytes);
  progress_->add(static_cast<Bytes>(bytes.size()));
}

SafetensorsWriter::Result SafetensorsWriter::finish() {
  LONGSHORE_CHECK(fd_.valid()) << "finish twice";
  LONGSHORE_CHECK(current_ == tensors_.size())
      << "tensor " << tensors_[current_].name << " is incomplete";
  flush();
  sync_file(fd_);
  progress_.reset();
  result_.file_hash = file_hasher_.digest();
  fd_.reset();
  return std::move(result_);
}

}  // namespace longshore
