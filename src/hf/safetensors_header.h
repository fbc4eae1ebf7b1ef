// SafetensorsHeader: the tensor table at the head of a safetensors file, parsed strictly from
// untrusted bytes, and written as the reference implementation does.
//
//   8 bytes          length of the header, little-endian
//   header           JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}}
//   data             the tensors end to end, no holes
//
// Plain values and pure functions. The parser allocates the table alone: a JSON tree would need a
// gigabyte for a header of 64 MiB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "hf/tensor_dtype.h"

namespace longshore {

inline constexpr Bytes kSafetensorsPrefixBytes = 8;
inline constexpr Bytes kMaxSafetensorsHeaderBytes = 64 * kMiB;
inline constexpr int64_t kMaxTensors = 1'000'000;
inline constexpr int64_t kMaxTensorRank = 8;
inline constexpr int64_t kMaxTensorNameBytes = 1024;
inline constexpr int64_t kMaxMetadataEntries = 65'536;
inline constexpr Bytes kMaxMetadataBytes = 8 * kMiB;

// Key and value of `__metadata__`, in the file's order.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

struct TensorInfo {
  std::string name;
  TensorDType dtype = TensorDType::kF32;
  std::vector<int64_t> shape;  // every dimension >= 0; empty: a scalar
  Bytes file_begin = 0;        // offset of its first byte in the file
  Bytes bytes = 0;             // product of the shape x width

  int64_t elements() const { return bytes / width_of(dtype); }
};

struct SafetensorsHeader {
  SafetensorsMetadata metadata;
  std::vector<TensorInfo> tensors;  // in byte order
};

// Parses the JSON between the length and the data. `file_bytes` is the file's size by fstat. Throws
// DataError "<path>: tensor '<name>': <reason>".
SafetensorsHeader parse_safetensors_header(std::string_view json, Bytes file_bytes,
                                           const std::string& path);

// Returns the length and the header, padded with spaces so that the data starts at a multiple of 8.
// `tensors` need name, dtype and shape; fills file_begin and bytes of each.
std::string format_safetensors_header(const SafetensorsMetadata& metadata,
                                      std::vector<TensorInfo>& tensors);

// Formats a shape: "[2, 3]".
std::string format_shape(const std::vector<int64_t>& shape);

}  // namespace longshore
