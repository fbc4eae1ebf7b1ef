// Quantisation: the quantised formats of a model's matrices, as config.json declares them. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/packed_format.h"
#include "hf/tensor_dtype.h"

namespace longshore {

enum class Quantisation : uint8_t {
  kNone,
  kMxfp4,   // hf/mxfp4.h
  kFp8,     // hf/fp8_tensor.h
  kNf4,     // hf/nf4_tensor.h, with double quantisation
  kNf4F32,  // hf/nf4_tensor.h, with scales in fp32
};

// Returns the name in messages: "MXFP4".
std::string_view name_of(Quantisation quantisation);

// Returns the format in which matrices of this kind stay packed; not of kNone.
PackedFormat format_of(Quantisation quantisation);

// Returns kNone without quantization_config. Throws ConfigError for other kinds, MXFP4 in other
// families (model_type) than these, fp8 in other blocks than 128 x 128, FP4 and 8 bits of
// bitsandbytes, and unknown keys. `origin` is the file's path; without `mxfp4_families` any family
// may be in MXFP4.
Quantisation read_quantisation(const Json& config, const std::string& origin,
                               std::span<const std::string> mxfp4_families = {});

// Returns whether the scales of a model in fp8 are powers of two (scale_fmt "ue8m0").
bool has_power_scales(const Json& config);

// Returns the keys that say how weights are quantised and are not null: "quantization_config",
// "compression_config", MLX's "quantization", and "text_config.quantization_config".
std::vector<std::string> quantisation_keys(const Json& config);

// Returns the text of config.json without these keys; all other bytes stay.
std::string without_quantisation_keys(const std::string& text);

// Returns whether a tensor of this name, type and number of dimensions is a part of a matrix that a
// quantiser packed: codes, scales, zero points. Vectors of integers, and integers of 64 bits, are
// buffers, not parts.
bool is_packed_part(std::string_view name, TensorDType dtype, size_t dimensions);

}  // namespace longshore
