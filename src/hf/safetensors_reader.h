// SafetensorsFile: an untrusted safetensors file, opened and checked as a whole. Reads use pread by
// ranges and no mapping, because truncation would raise SIGBUS. Movable. Reading is const and safe
// from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/direct_reader.h"
#include "base/file.h"
#include "hf/read_sums.h"
#include "hf/safetensors_header.h"

namespace longshore {

class SafetensorsFile {
 public:
  // Follows links. Throws IoError if the file is unreadable, DataError if it is invalid.
  static SafetensorsFile open(const std::string& path);
  // Takes over an open descriptor of a regular file.
  explicit SafetensorsFile(UniqueFd fd);

  const std::string& path() const { return fd_.path(); }
  Bytes file_bytes() const { return file_bytes_; }
  // Returns the file_identity of the open file (base/file.h).
  std::string identity() const { return file_identity(fd_); }
  // The tensors are in byte order.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  // Returns the xxh3 of the length and the header: names, shapes, types and ranges.
  uint64_t header_hash() const { return header_hash_; }

  // Returns nullptr if there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  // Throws DataError if there is no such tensor.
  const TensorInfo& tensor(std::string_view name) const;

  // Reads out.size() bytes of the tensor from its byte `begin` on; the range must be inside the
  // tensor.
  void read(const TensorInfo& tensor, Bytes begin, std::span<std::byte> out) const;
  // Reads in the same way with a reader that past_cache() returned.
  void read(const TensorInfo& tensor, Bytes begin, std::span<std::byte> out,
            const DirectReader& reader) const;
  // Returns a reader of this file, which must not outlive it, for tensors that are not needed again
  // soon.
  DirectReader past_cache() const { return DirectReader(fd_); }
  // Returns whether the file has the size and the time of change that it had when it was opened.
  bool unchanged() const { return identity_of(fd_) == identity_; }
  // Makes every later read add the bytes that it reads for the first time to read_sums().
  void sum_reads();
  // Returns null unless reads are summed. The tensors have the indices of tensors().
  ReadSums* read_sums() const { return sums_.get(); }
  // Passes the tensor's bytes to `use` in pieces of at most 1 MiB.
  void read_in_pieces(const TensorInfo& tensor,
                      const std::function<void(std::span<const std::byte>)>& use) const;
  // Returns the xxh3 of the tensor's bytes.
  uint64_t hash(const TensorInfo& tensor) const;

 private:
  void add_to_sums(const TensorInfo& tensor, Bytes begin, std::span<const std::byte> bytes) const;

  UniqueFd fd_;
  FileIdentity identity_;  // before the header was read
  Bytes file_bytes_ = 0;
  uint64_t header_hash_ = 0;
  SafetensorsHeader header_;
  std::vector<uint32_t> by_name_;  // indices into the tensors, sorted by name
  std::unique_ptr<ReadSums> sums_;
};

}  // namespace longshore
