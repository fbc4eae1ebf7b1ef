#include "base/packed_format.h"

#include <array>

#include "base/errors.h"
#include "base/fp8.h"
#include "base/mxfp4.h"
#include "base/nf4.h"

namespace longshore {
namespace {

Nf4Layout nf4_layout(std::span<const int64_t> shape) {
  return Nf4Layout(shape[0] * shape[1]);
}
Nf4F32Layout nf4_f32_layout(std::span<const int64_t> shape) {
  return Nf4F32Layout(shape[0] * shape[1]);
}
Fp8Layout fp8_layout(std::span<const int64_t> shape) {
  return {shape[0], shape[1]};
}
Mxfp4Layout mxfp4_layout(std::span<const int64_t> shape) {
  return {shape[0], shape[1]};
}

}  // namespace

std::string_view name_of(PackedFormat format) {
  constexpr std::array<std::string_view, 4> kNames = {"nf4", "fp8", "mxfp4", "nf4-fp32-scales"};
  return kNames.at(static_cast<size_t>(format));
}

Bytes packed_bytes(PackedFormat format, std::span<const int64_t> shape) {
  LONGSHORE_CHECK(shape.size() == 2) << shape.size() << " dimensions";
  switch (format) {
    case PackedFormat::kNf4:
      return nf4_layout(shape).bytes();
    case PackedFormat::kFp8:
      return fp8_layout(shape).bytes();
    case PackedFormat::kMxfp4:
      return mxfp4_layout(shape).bytes();
    case PackedFormat::kNf4F32:
      return nf4_f32_layout(shape).bytes();
  }
  return 0;
}

void encode_packed(PackedFormat format, std::span<const int64_t> shape, const ReadValues& read,
                   std::span<std::byte> packed) {
  LONGSHORE_CHECK(format == PackedFormat::kNf4 || format == PackedFormat::kFp8)
      << name_of(format) << " is only read";
  if (format == PackedFormat::kNf4) {
    encode_nf4(nf4_layout(shape), read, packed);
  } else {
    encode_fp8(fp8_layout(shape), read, packed);
  }
}

void decode_packed(PackedFormat format, std::span<const int64_t> shape,
                   std::span<const std::byte> packed, int64_t begin, std::span<float> out) {
  switch (format) {
    case PackedFormat::kNf4:
      decode_nf4(nf4_layout(shape), packed, begin, out);
      return;
    case PackedFormat::kFp8:
      decode_fp8(fp8_layout(shape), packed, begin, out);
      return;
    case PackedFormat::kMxfp4: {
      const Mxfp4Layout layout = mxfp4_layout(shape);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(packed.data());
      decode_mxfp4(layout,
                   {.first = 0,
                    .count = layout.outputs(),
                    .blocks = bytes,
                    .scales = bytes + layout.scales_begin()},
                   begin, out);
      return;
    }
    case PackedFormat::kNf4F32:
      decode_nf4_f32(nf4_f32_layout(shape), packed, begin, out);
  }
}

}  // namespace longshore
