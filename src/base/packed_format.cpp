#include "base/packed_format.h"

#include "base/errors.h"
#include "base/fp8.h"
#include "base/nf4.h"

namespace longshore {
namespace {

Nf4Layout nf4_layout(std::span<const int64_t> shape) {
  return Nf4Layout(shape[0] * shape[1]);
}
Fp8Layout fp8_layout(std::span<const int64_t> shape) {
  return {shape[0], shape[1]};
}

}  // namespace

std::string_view name_of(PackedFormat format) {
  return format == PackedFormat::kNf4 ? "nf4" : "fp8";
}

Bytes packed_bytes(PackedFormat format, std::span<const int64_t> shape) {
  LONGSHORE_CHECK(shape.size() == 2) << shape.size() << " dimensions";
  return format == PackedFormat::kNf4 ? nf4_layout(shape).bytes() : fp8_layout(shape).bytes();
}

void encode_packed(PackedFormat format, std::span<const int64_t> shape, const ReadValues& read,
                   std::span<std::byte> packed) {
  if (format == PackedFormat::kNf4) {
    encode_nf4(nf4_layout(shape), read, packed);
  } else {
    encode_fp8(fp8_layout(shape), read, packed);
  }
}

void decode_packed(PackedFormat format, std::span<const int64_t> shape,
                   std::span<const std::byte> packed, int64_t begin, std::span<float> out) {
  if (format == PackedFormat::kNf4) {
    decode_nf4(nf4_layout(shape), packed, begin, out);
  } else {
    decode_fp8(fp8_layout(shape), packed, begin, out);
  }
}

}  // namespace longshore
