#include "base/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

constexpr int64_t kBlock = Fp8Layout::kBlock;
constexpr float kMost = 448.0F;  // the largest number of e4m3
// Below this a block counts as zeros, because 448 * (1 / largest) would be infinite.
constexpr float kLeastLargest = 1e-35F;

std::array<float, 256> make_numbers() {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    const float number = exponent == 0
                             ? std::ldexp(static_cast<float>(mantissa), -9)
                             : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    numbers[static_cast<size_t>(code)] = number;
    numbers[static_cast<size_t>(code + 128)] = -number;
  }
  numbers[0x7F] = numbers[0xFF] = std::numeric_limits<float>::quiet_NaN();
  return numbers;
}

// Returns the code of the number nearest to a value between -448 and 448; ties go to even codes.
uint8_t code_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int exponent = std::max(static_cast<int>(bits >> 23 & 0xFF) - 127, -6);
  // Numbers with this exponent are 2^(exponent - 3) apart, so the product is exact.
  const float per_step = std::bit_cast<float>(static_cast<uint32_t>(130 - exponent) << 23);
  const float steps = std::rint(std::fabs(value) * per_step);
  const auto code = static_cast<uint32_t>((exponent + 6) * 8 + static_cast<int>(steps));
  return static_cast<uint8_t>(code | (bits >> 31) << 7);
}

float largest_of(std::span<const float> rows, int64_t columns, int64_t first, int64_t width) {
  float largest = 0.0F;
  for (int64_t at = first; at < std::ssize(rows); at += columns) {
    for (const float value : rows.subspan(static_cast<size_t>(at), static_cast<size_t>(width))) {
      largest = std::max(largest, std::fabs(value));
    }
  }
  return largest;
}

struct ScalePair {
  float stored;
  float inverse;  // what values are multiplied by
};

ScalePair scale_of(float largest, Fp8Scale kind) {
  // torch divides a number by a tensor in two roundings, and so transformers does.
  const float inverse = largest > kLeastLargest ? kMost * (1.0F / largest) : 1.0F;
  const float scale = 1.0F / inverse;
  if (kind == Fp8Scale::kF32) return {scale, inverse};
  const float stored =
      kind == Fp8Scale::kBF16
          ? bf16_to_float(float_to_bf16_nearest(scale))
          : std::exp2(std::ceil(std::log2(std::max(scale, std::numeric_limits<float>::min()))));
  return {stored, 1.0F / stored};
}

}  // namespace

const std::array<float, 256>& e4m3_numbers() {
  static const std::array<float, 256> numbers = make_numbers();
  return numbers;
}

void decode_fp8_block(std::span<const uint8_t> codes, float scale, std::span<float> out) {
  const std::array<float, 256>& numbers = e4m3_numbers();
  for (size_t i = 0; i < codes.size(); ++i) {
    out[i] = bf16_to_float(float_to_bf16_nearest(numbers[codes[i]] * scale));
  }
}

void encode_fp8_rows(std::span<const float> rows, int64_t columns, Fp8Scale kind,
                     std::span<float> scales, std::span<uint8_t> codes) {
  LONGSHORE_CHECK(codes.size() == rows.size() && std::ssize(rows) % columns == 0 &&
                  std::ssize(scales) == (columns + kBlock - 1) / kBlock)
      << rows.size() << " values, " << columns << " columns, " << scales.size() << " scales";
  for (int64_t first = 0; first < columns; first += kBlock) {
    const int64_t width = std::min(kBlock, columns - first);
    const ScalePair scale = scale_of(largest_of(rows, columns, first, width), kind);
    scales[static_cast<size_t>(first / kBlock)] = scale.stored;
    for (int64_t at = first; at < std::ssize(rows); at += columns) {
      for (auto i = static_cast<size_t>(at); i < static_cast<size_t>(at + width); ++i) {
        codes[i] = code_of(std::clamp(rows[i] * scale.inverse, -kMost, kMost));
      }
    }
  }
}

void encode_fp8(const Fp8Layout& layout, const ReadValues& read, std::span<std::byte> packed) {
  LONGSHORE_CHECK(layout.elements() > 0 && static_cast<Bytes>(packed.size()) == layout.bytes())
      << layout.elements() << " values in " << packed.size() << " bytes";
  std::ranges::fill(packed, std::byte{0});
  const int64_t columns = layout.columns();
  std::vector<float> values(static_cast<size_t>(std::min(kBlock, layout.rows()) * columns));
  std::vector<float> scales(static_cast<size_t>(layout.block_columns()));
  for (int64_t row = 0; row < layout.rows(); row += kBlock) {
    const int64_t count = std::min(kBlock, layout.rows() - row) * columns;
    const std::span<float> rows = std::span(values).first(static_cast<size_t>(count));
    read(row * columns, rows);
    auto* const codes =
        reinterpret_cast<uint8_t*>(packed.data()) + layout.codes_begin() + row * columns;
    encode_fp8_rows(rows, columns, Fp8Scale::kF32, scales,
                    std::span(codes, static_cast<size_t>(count)));
    std::memcpy(packed.data() + 4 * (row / kBlock * layout.block_columns()), scales.data(),
                4 * scales.size());
  }
}

void decode_fp8(const Fp8Layout& layout, std::span<const std::byte> packed, int64_t begin,
                std::span<float> out) {
  LONGSHORE_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= layout.elements());
  const int64_t columns = layout.columns();
  const auto* const codes =
      reinterpret_cast<const uint8_t*>(packed.data()) + layout.codes_begin() + begin;
  for (size_t done = 0; done < out.size();) {
    const int64_t at = begin + static_cast<int64_t>(done);
    const int64_t row = at / columns, column = at % columns;
    const int64_t left = std::min(kBlock - column % kBlock, columns - column);
    const size_t count = std::min(static_cast<size_t>(left), out.size() - done);
    const int64_t block = row / kBlock * layout.block_columns() + column / kBlock;
    float scale = 0.0F;
    std::memcpy(&scale, packed.data() + 4 * block, sizeof(scale));
    decode_fp8_block(std::span(codes + done, count), scale, out.subspan(done, count));
    done += count;
  }
}

}  // namespace longshore
