#include "hf/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/texts.h"

namespace longshore {
namespace {

uint64_t read_header_length(const UniqueFd& fd) {
  std::array<std::byte, kSafetensorsPrefixBytes> prefix;
  read_exact_at(fd, 0, prefix);
  uint64_t length = 0;
  for (int i = kSafetensorsPrefixBytes - 1; i >= 0; --i) {
    length = length << 8 | std::to_integer<uint64_t>(prefix[static_cast<size_t>(i)]);
  }
  return length;
}

// A clone without Git LFS leaves a placeholder that begins with "version https://git-lfs".
constexpr uint64_t kLfsPointerStart = 0x206E6F6973726576;  // "version "

Bytes checked_header_length(const UniqueFd& fd, Bytes file_bytes) {
  const std::string& path = fd.path();
  if (file_bytes < kSafetensorsPrefixBytes) {
    throw DataError(path + ": " + std::to_string(file_bytes) +
                    " bytes are too few for a safetensors file");
  }
  const uint64_t length = read_header_length(fd);
  if (length == kLfsPointerStart) {
    throw DataError(path + ": a Git LFS pointer, not the weights; run git lfs pull");
  }
  const Bytes limit = std::min(file_bytes - kSafetensorsPrefixBytes, kMaxSafetensorsHeaderBytes);
  if (length > static_cast<uint64_t>(limit)) {
    throw DataError(path + ": the header's length is " + std::to_string(length) +
                    " bytes, at most " + std::to_string(limit) +
                    " are possible; it is no safetensors file, or cut short");
  }
  return static_cast<Bytes>(length);
}

// Returns the offset in the file of a tensor's byte `begin`; all of `out` must be in the tensor.
Bytes checked_offset(const TensorInfo& tensor, Bytes begin, std::span<const std::byte> out) {
  const auto wanted = static_cast<Bytes>(out.size());
  LONGSHORE_CHECK(begin >= 0 && wanted <= tensor.bytes && begin <= tensor.bytes - wanted)
      << tensor.name << ": bytes from " << begin << ", " << wanted << " of " << tensor.bytes;
  return tensor.file_begin + begin;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  return SafetensorsFile(open_for_reading(path));
}

SafetensorsFile::SafetensorsFile(UniqueFd fd) : fd_(std::move(fd)), identity_(identity_of(fd_)) {
  file_bytes_ = longshore::file_bytes(fd_);
  const Bytes header_bytes = checked_header_length(fd_, file_bytes_);
  std::string text(static_cast<size_t>(kSafetensorsPrefixBytes + header_bytes), '\0');
  read_exact_at(fd_, 0, std::as_writable_bytes(std::span<char>(text)));
  header_hash_ = hash64(text);
  header_ = parse_safetensors_header(std::string_view(text).substr(kSafetensorsPrefixBytes),
                                     file_bytes_, fd_.path());
  by_name_.resize(header_.tensors.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return header_.tensors[a].name < header_.tensors[b].name;
  });
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view key) { return header_.tensors[index].name < key; });
  if (at == by_name_.end() || header_.tensors[*at].name != name) return nullptr;
  return &header_.tensors[*at];
}

const TensorInfo& SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo* const found = find(name);
  if (found == nullptr) throw DataError(path() + ": no tensor '" + printable(name) + "'");
  return *found;
}

void SafetensorsFile::read(const TensorInfo& tensor, Bytes begin, std::span<std::byte> out) const {
  read_exact_at(fd_, checked_offset(tensor, begin, out), out);
  add_to_sums(tensor, begin, out);
}

void SafetensorsFile::read(const TensorInfo& tensor, Bytes begin, std::span<std::byte> out,
                           const DirectReader& reader) const {
  reader.read(checked_offset(tensor, begin, out), out);
  add_to_sums(tensor, begin, out);
}

void SafetensorsFile::sum_reads() {
  if (!sums_) sums_ = std::make_unique<ReadSums>(header_.tensors.size());
}

void SafetensorsFile::add_to_sums(const TensorInfo& tensor, Bytes begin,
                                  std::span<const std::byte> bytes) const {
  if (sums_) sums_->take(static_cast<size_t>(&tensor - header_.tensors.data()), begin, bytes);
}

void SafetensorsFile::read_in_pieces(
    const TensorInfo& tensor, const std::function<void(std::span<const std::byte>)>& use) const {
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kMiB, tensor.bytes)));
  for (Bytes begin = 0; begin < tensor.bytes; begin += kMiB) {
    const std::span<std::byte> part =
        std::span(piece).first(static_cast<size_t>(std::min(kMiB, tensor.bytes - begin)));
    read(tensor, begin, part);
    use(part);
  }
}

uint64_t SafetensorsFile::hash(const TensorInfo& tensor) const {
  Hasher hasher;
  read_in_pieces(tensor, [&hasher](std::span<const std::byte> piece) { hasher.update(piece); });
  return hasher.digest();
}

}  // namespace longshore
