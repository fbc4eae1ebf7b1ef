#include "hf/safetensors_header.h"

#include <optional>

#include "base/errors.h"
#include "base/json.h"

namespace longshore {
namespace {

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

// `data_begin` counts from the start of the data, as in the header.
std::string format_entry(const TensorInfo& tensor, Bytes data_begin) {
  std::string shape;
  for (const int64_t dimension : tensor.shape) {
    if (!shape.empty()) shape += ',';
    shape += std::to_string(dimension);
  }
  return quoted(tensor.name) + R"(:{"dtype":")" + std::string(name_of(tensor.dtype)) +
         R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data_begin) + "," +
         std::to_string(data_begin + tensor.bytes) + "]}";
}

Bytes checked_bytes(const TensorInfo& tensor) {
  std::optional<Bytes> bytes = width_of(tensor.dtype);
  for (const int64_t dimension : tensor.shape) {
    LONGSHORE_CHECK(bytes.has_value() && dimension >= 0) << tensor.name;
    bytes = checked_multiply(*bytes, dimension);
  }
  LONGSHORE_CHECK(bytes.has_value()) << tensor.name;
  return *bytes;
}

void check_declaration(const TensorInfo& tensor) {
  LONGSHORE_CHECK(!tensor.name.empty() && tensor.name != "__metadata__") << tensor.name;
  LONGSHORE_CHECK(static_cast<int64_t>(tensor.name.size()) <= kMaxTensorNameBytes) << tensor.name;
  LONGSHORE_CHECK(static_cast<int64_t>(tensor.shape.size()) <= kMaxTensorRank) << tensor.name;
}

}  // namespace

std::string format_safetensors_header(const SafetensorsMetadata& metadata,
                                      std::vector<TensorInfo>& tensors) {
  LONGSHORE_CHECK(static_cast<int64_t>(tensors.size()) <= kMaxTensors) << tensors.size();
  std::string json = "{";
  if (!metadata.empty()) {
    json += R"("__metadata__":{)";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += quoted(key) + ":" + quoted(value);
    }
    json += '}';
  }
  Bytes cursor = 0;
  for (TensorInfo& tensor : tensors) {
    check_declaration(tensor);
    tensor.bytes = checked_bytes(tensor);
    if (json.size() > 1) json += ',';
    json += format_entry(tensor, cursor);
    tensor.file_begin = cursor;
    const std::optional<Bytes> next = checked_add(cursor, tensor.bytes);
    LONGSHORE_CHECK(next.has_value()) << tensor.name;
    cursor = *next;
  }
  json += '}';
  json.resize(static_cast<size_t>(align_up(static_cast<int64_t>(json.size()), 8)), ' ');
  const auto header_bytes = static_cast<Bytes>(json.size());
  LONGSHORE_CHECK(header_bytes <= kMaxSafetensorsHeaderBytes) << header_bytes;

  std::string out;
  for (int i = 0; i < kSafetensorsPrefixBytes; ++i) {
    out += static_cast<char>(static_cast<uint64_t>(header_bytes) >> (8 * i) & 0xFF);
  }
  out += json;
  for (TensorInfo& tensor : tensors) tensor.file_begin += static_cast<Bytes>(out.size());
  return out;
}

std::string format_shape(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + "]";
}

}  // namespace longshore
