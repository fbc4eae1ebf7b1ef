// Dtypes of published models: those of tensors in safetensors files, and the one that a config.json
// names. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/json.h"

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

// The type that a config.json names ("torch_dtype", newer "dtype"). Pure functions.

// Returns "float32", "bfloat16" or "float16".
std::string_view config_name_of(DType dtype);

// Returns nullopt if the key is absent, null, "auto" or names another type. A key in text_config
// counts if the outer one is absent.
std::optional<DType> config_dtype(const Json& config);

// Returns `text` (a valid config.json) with the type's name replaced at the top and in text_config.
// All other bytes stay, and absent keys stay absent.
std::string with_config_dtype(const std::string& text, DType dtype);

}  // namespace longshore
