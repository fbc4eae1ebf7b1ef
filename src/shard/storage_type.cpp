#include "shard/storage_type.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/fp8.h"
#include "base/mxfp4.h"
#include "base/nf4.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

struct Traits {
  StorageType type;
  StorageBlock block = {};
  std::optional<DType> number = {};
  std::optional<PackedFormat> packing = {};
};

// NF4 takes its blocks from the whole matrix in row-major order, so they may cross rows. MXFP4's
// are of the transpose.
constexpr std::array<Traits, 6> kTraits = {{
    {.type = StorageType::kF32, .number = DType::kF32},
    {.type = StorageType::kBF16, .number = DType::kBF16},
    {.type = StorageType::kNf4, .block = {1, Nf4Layout::kBlock}, .packing = PackedFormat::kNf4},
    {.type = StorageType::kFp8Blocks,
     .block = {Fp8Layout::kBlock, Fp8Layout::kBlock},
     .packing = PackedFormat::kFp8},
    {.type = StorageType::kMxfp4,
     .block = {Mxfp4Layout::kGroup, 1},
     .packing = PackedFormat::kMxfp4},
    {.type = StorageType::kNf4F32,
     .block = {1, Nf4F32Layout::kBlock},
     .packing = PackedFormat::kNf4F32},
}};

const Traits& traits_of(StorageType type) {
  return *std::ranges::find(kTraits, type, &Traits::type);
}

template <typename Key, typename Member>
StorageType type_of(Key key, Member member) {
  const auto found = std::ranges::find(kTraits, std::optional<Key>(key), member);
  LONGSHORE_CHECK(found != kTraits.end()) << "no storage type for " << static_cast<int>(key);
  return found->type;
}

}  // namespace

StorageBlock block_of(StorageType type) {
  return traits_of(type).block;
}

StorageType storage_of(DType compute) {
  return type_of(compute, &Traits::number);
}

StorageType storage_of(PackedFormat format) {
  return type_of(format, &Traits::packing);
}

DType number_of(StorageType type) {
  const std::optional<DType> number = traits_of(type).number;
  LONGSHORE_CHECK(number.has_value()) << "storage type " << static_cast<int>(type) << " is packed";
  return *number;
}

PackedFormat packing_of(StorageType type) {
  const std::optional<PackedFormat> packing = traits_of(type).packing;
  LONGSHORE_CHECK(packing.has_value())
      << "storage type " << static_cast<int>(type) << " is not packed";
  return *packing;
}

Bytes stored_bytes(StorageType type, std::span<const int64_t> shape) {
  if (is_packed(type)) return packed_bytes(packing_of(type), shape);
  Bytes bytes = width_of(number_of(type));
  for (const int64_t dimension : shape) bytes *= dimension;
  return bytes;
}

void store_numbers(StorageType type, std::span<const float> values, std::span<std::byte> stored) {
  const DType number = number_of(type);
  LONGSHORE_CHECK(static_cast<Bytes>(stored.size()) == std::ssize(values) * width_of(number));
  if (number == DType::kF32) {
    std::ranges::copy(values, as_span<float>(stored).begin());
  } else {
    std::ranges::transform(values, as_span<uint16_t>(stored).begin(), master_high);
  }
}

void load_numbers(StorageType type, std::span<const std::byte> stored, std::span<float> values) {
  const DType number = number_of(type);
  LONGSHORE_CHECK(static_cast<Bytes>(stored.size()) == std::ssize(values) * width_of(number));
  if (number == DType::kF32) {
    std::ranges::copy(as_span<float>(stored), values.begin());
  } else {
    std::ranges::transform(as_span<uint16_t>(stored), values.begin(), bf16_to_float);
  }
}

}  // namespace longshore
