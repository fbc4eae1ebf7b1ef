// StorageType: how tiers, slots and gathers hold the values of a parameter: as numbers, one by one,
// or packed, in blocks that share a scale. A plain value and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/packed_format.h"

namespace longshore {

// A type more, such as fp8 in rows, is a row of the table in storage_type.cpp.
enum class StorageType : uint8_t { kF32, kBF16, kNf4, kFp8Blocks, kMxfp4, kNf4F32 };

// The values of a matrix that share a scale, or one number.
struct StorageBlock {
  int64_t rows = 1;
  int64_t columns = 1;
  bool operator==(const StorageBlock&) const = default;
};
StorageBlock block_of(StorageType type);
// Returns whether values share scales: the bytes of a matrix are made and read as a whole.
inline bool is_packed(StorageType type) {
  return block_of(type) != StorageBlock();
}

// Returns the type of numbers of a compute dtype, which is fp32 or bf16.
StorageType storage_of(DType compute);
StorageType storage_of(PackedFormat format);
// Return the dtype of numbers, and the format of a packed type; other types are an error.
DType number_of(StorageType type);
PackedFormat packing_of(StorageType type);

// Returns the bytes of values of this shape; those of a packed type are a matrix [rows, columns],
// with its scales in their place.
Bytes stored_bytes(StorageType type, std::span<const int64_t> shape);

// These convert between values and numbers; `stored` has exactly their bytes. A value is rounded to
// bf16 as every state format rounds the parameter of a master (base/number_formats.h).
void store_numbers(StorageType type, std::span<const float> values, std::span<std::byte> stored);
void load_numbers(StorageType type, std::span<const std::byte> stored, std::span<float> values);

}  // namespace longshore
