#include "hf/tensor_dtype.h"

#include <array>

#include "base/errors.h"

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

}  // namespace longshore
