// TensorDType: every whole-byte element type of safetensors. Models use the types that
// `model_dtype` maps; others pass through as bytes (skipped buffers, checkpoints). Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"

namespace longshore {

enum class TensorDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
  kC64,
};

Bytes width_of(TensorDType dtype);
// The names are safetensors' spelling: "BF16", "F8_E4M3".
std::string_view name_of(TensorDType dtype);
std::optional<TensorDType> parse_tensor_dtype(std::string_view name);

// Returns the engine's type for F32, BF16 and F16; nullopt for all others.
std::optional<DType> model_dtype(TensorDType dtype);
TensorDType tensor_dtype(DType dtype);

}  // namespace longshore
