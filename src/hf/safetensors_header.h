// SafetensorsHeader: the table of tensors at the head of a safetensors file, read strictly from
// bytes of unknown origin, and written as the reference implementation writes it.
//
//   8 bytes          length of the header, little-endian
//   header           JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}}
//   data             the tensors end to end, no holes
//
// Plain values and pure functions. The parser never builds a JSON tree: a header of 64 MiB would
// need a gigabyte as one; here it costs the table alone.
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
  std::vector<int64_t> shape;  // every dimension >= 0; empty = a scalar
  Bytes file_begin = 0;        // of its first byte, from the start of the file
  Bytes bytes = 0;             // == product of the shape x width

  int64_t elements() const { return bytes / width_of(dtype); }
};

struct SafetensorsHeader {
  SafetensorsMetadata metadata;
  std::vector<TensorInfo> tensors;  // in the order of their bytes
};

// Reads the JSON between the length and the data. `header_bytes` is its length, `file_bytes` the
// file's size by fstat; throws DataError "<path>: tensor '<name>': <reason>".
SafetensorsHeader parse_safetensors_header(std::string_view json, Bytes file_bytes,
                                           const std::string& path);

// The length and the header, padded with spaces so that the data starts at a multiple of 8.
// `tensors` need name, dtype and shape; fills file_begin and bytes of each.
std::string format_safetensors_header(const SafetensorsMetadata& metadata,
                                      std::vector<TensorInfo>& tensors);

// "[2, 3]".
std::string format_shape(const std::vector<int64_t>& shape);

}  // namespace longshore
