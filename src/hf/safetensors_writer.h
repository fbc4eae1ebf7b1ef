// SafetensorsWriter: writes one safetensors file front to back: tensors are declared first, then
// their bytes are appended in that order. It holds one bounded buffer and removes its file if it is
// destroyed before `finish`. One thread; the caller owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "hf/safetensors_header.h"

namespace longshore {

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    TensorDType dtype = TensorDType::kF32;
    std::vector<int64_t> shape;
  };
  struct Result {
    std::vector<uint64_t> tensor_hashes;  // xxh3 of each tensor's bytes, in declared order
    uint64_t file_hash = 0;               // xxh3 of the whole file
    Bytes file_bytes = 0;
  };

  // Creates `path`, which must not exist, reserves its bytes (IoError if the disk is too full) and
  // writes the header.
  SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors,
                    const SafetensorsMetadata& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Appends the next bytes: part of a tensor, or bytes of several.
  void append(std::span<const std::byte> bytes);
  // Writes the buffer, syncs the file and closes it; all tensors must be complete. The caller syncs
  // the directory.
  Result finish();

 private:
  void buffer(std::span<const std::byte> bytes);
  void write_out(std::span<const std::byte> bytes);
  void flush();
  // Stores the hashes of the complete tensors.
  void close_complete_tensors();

  UniqueFd fd_;
  std::vector<TensorInfo> tensors_;
  size_t current_ = 0;       // the tensor of the next byte
  Bytes current_bytes_ = 0;  // its bytes so far
  std::vector<std::byte> buffer_;
  Hasher tensor_hasher_;
  Hasher file_hasher_;
  Result result_;
  std::optional<Progress> progress_;
};

}  // namespace longshore
