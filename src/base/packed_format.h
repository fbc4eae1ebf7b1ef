// PackedFormat: how a frozen matrix is stored in fewer bits than its values have in the compute
// dtype. Tiers, slots and transfers hold the packed bytes; kernels/unpack.h unpacks them on the
// device. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

enum class PackedFormat : uint8_t {
  kNf4,     // base/nf4.h
  kFp8,     // base/fp8.h
  kMxfp4,   // base/mxfp4.h; only of models that are published in it
  kNf4F32,  // base/nf4.h, with scales in fp32; only of published models
};

// Returns the name in the run file; formats of published models alone have one for messages.
std::string_view name_of(PackedFormat format);

// Fills the span with the values from `begin` on, in row-major order.
using ReadValues = std::function<void(int64_t begin, std::span<float> out)>;

// `shape` is [rows, columns], each at least 1.
Bytes packed_bytes(PackedFormat format, std::span<const int64_t> shape);

// Packs the finite values of a matrix, which `read` returns in pieces; `packed` has packed_bytes.
// `format` is kNf4 or kFp8; the others are only read.
void encode_packed(PackedFormat format, std::span<const int64_t> shape, const ReadValues& read,
                   std::span<std::byte> packed);

// Returns the values from `begin` on, as the model computes with them in fp32.
void decode_packed(PackedFormat format, std::span<const int64_t> shape,
                   std::span<const std::byte> packed, int64_t begin, std::span<float> out);

}  // namespace longshore
