// DType: the element types of model files and of the engine, without LibTorch. Plain values.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr Bytes width_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

// Returns the name that safetensors uses: "F32", "BF16", "F16".
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
  }
  return "?";
}

}  // namespace longshore
