// Quantisation: the formats with fewer bits in which a model's files may hold its matrices, as
// config.json declares them. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace longshore {

enum class Quantisation : uint8_t {
  kNone,
  kMxfp4,  // hf/mxfp4.h
  kFp8,    // hf/fp8_tensor.h
};

// Returns the name in messages: "MXFP4".
std::string_view name_of(Quantisation quantisation);

// Returns kNone without quantization_config. Throws ConfigError for other kinds, MXFP4 in other
// families than gpt_oss, other blocks than 128 x 128 and unknown keys. `origin` is the file's path.
Quantisation read_quantisation(const Json& config, const std::string& origin);

}  // namespace longshore
