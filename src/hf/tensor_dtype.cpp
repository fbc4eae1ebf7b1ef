#include "hf/tensor_dtype.h"

#include <array>

#include "base/errors.h"
#include "hf/json_members.h"

namespace longshore {
namespace {

struct DTypeRow {
  TensorDType dtype;
  std::string_view name;
  Bytes width;
};

// The rows are in the order of the enumeration.
constexpr std::array<DTypeRow, 17> kRows = {{
    {TensorDType::kBool, "BOOL", 1},
    {TensorDType::kU8, "U8", 1},
    {TensorDType::kI8, "I8", 1},
    {TensorDType::kF8E5M2, "F8_E5M2", 1},
    {TensorDType::kF8E4M3, "F8_E4M3", 1},
    {TensorDType::kF8E8M0, "F8_E8M0", 1},
    {TensorDType::kU16, "U16", 2},
    {TensorDType::kI16, "I16", 2},
    {TensorDType::kF16, "F16", 2},
    {TensorDType::kBF16, "BF16", 2},
    {TensorDType::kU32, "U32", 4},
    {TensorDType::kI32, "I32", 4},
    {TensorDType::kF32, "F32", 4},
    {TensorDType::kU64, "U64", 8},
    {TensorDType::kI64, "I64", 8},
    {TensorDType::kF64, "F64", 8},
    {TensorDType::kC64, "C64", 8},
}};

const DTypeRow& row_of(TensorDType dtype) {
  const DTypeRow& row = kRows.at(static_cast<size_t>(dtype));
  LONGSHORE_CHECK(row.dtype == dtype) << row.name;
  return row;
}

// transformers 5 and 4 spell the key differently; the newer spelling wins.
constexpr std::array<std::string_view, 2> kKeys = {"dtype", "torch_dtype"};

std::optional<DType> parse_config_dtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == config_name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_of_object(const Json& object) {
  for (const std::string_view key : kKeys) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) continue;
    return parse_config_dtype(found->get_ref<const std::string&>());
  }
  return std::nullopt;
}

// Replaces the type's name in the members of the object at the top.
std::string with_own_dtype(std::string text, DType dtype) {
  for (const std::string_view key : kKeys) {
    const std::optional<TextRange> value = member_value(text, key);
    if (!value || text[value->begin] != '"') continue;
    const std::string name = "\"" + std::string(config_name_of(dtype)) + "\"";
    text.replace(value->begin, value->end - value->begin, name);
  }
  return text;
}

}  // namespace

Bytes width_of(TensorDType dtype) {
  return row_of(dtype).width;
}

std::string_view name_of(TensorDType dtype) {
  return row_of(dtype).name;
}

std::optional<TensorDType> parse_tensor_dtype(std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> model_dtype(TensorDType dtype) {
  switch (dtype) {
    case TensorDType::kF32:
      return DType::kF32;
    case TensorDType::kBF16:
      return DType::kBF16;
    case TensorDType::kF16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

TensorDType tensor_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return TensorDType::kF32;
    case DType::kBF16:
      return TensorDType::kBF16;
    case DType::kF16:
      return TensorDType::kF16;
  }
  LONGSHORE_CHECK(false) << static_cast<int>(dtype);
  return TensorDType::kF32;
}

std::string_view config_name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
  }
  return "";
}

std::optional<DType> config_dtype(const Json& config) {
  if (const std::optional<DType> dtype = dtype_of_object(config)) return dtype;
  const auto text_config = config.find("text_config");
  if (text_config == config.end() || !text_config->is_object()) return std::nullopt;
  return dtype_of_object(*text_config);
}

std::string with_config_dtype(const std::string& text, DType dtype) {
  std::string out = with_own_dtype(text, dtype);
  if (const std::optional<TextRange> inner = member_value(out, "text_config")) {
    const size_t bytes = inner->end - inner->begin;
    out.replace(inner->begin, bytes, with_own_dtype(out.substr(inner->begin, bytes), dtype));
  }
  return out;
}

}  // namespace longshore
