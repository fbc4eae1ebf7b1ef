// Block-scaled fp8 as transformers 5.23 packs and unpacks it (Fp8Quantize and Fp8Dequantize with
// blocks of 128 x 128). Goal: the same bits. tests/hf/make_fp8.py prints the digests.
#include "base/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/number_formats.h"

namespace longshore {
namespace {

// FNV-1a over bytes.
uint64_t digest(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

// Exact in fp32.
std::vector<float> example(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = static_cast<double>((i * 7919 + 13) % 65536 - 32768);
    values.push_back(
        static_cast<float>(draw * static_cast<double>(64 + (i / 64 * 37) % 101) / 67108864.0));
  }
  return values;
}

std::vector<std::byte> packed(const Fp8Layout& layout, const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes()));
  encode_fp8(
      layout,
      [&values](int64_t begin, std::span<float> out) {
        std::copy_n(values.begin() + begin, out.size(), out.begin());
      },
      bytes);
  return bytes;
}

TEST(Fp8, HasTheBitsOfTransformers) {
  const Fp8Layout layout(128, 256);
  const std::vector<std::byte> bytes = packed(layout, example(layout.elements()));
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(digest(all.first(static_cast<size_t>(layout.scales_bytes()))), 0x168f865838698a93u);
  EXPECT_EQ(digest(all.subspan(static_cast<size_t>(layout.codes_begin()))), 0x3f0e68855e78808bu);
  std::vector<float> values(static_cast<size_t>(layout.elements()));
  decode_fp8(layout, bytes, 0, values);
  EXPECT_EQ(digest(std::as_bytes(std::span(values))), 0x09c86cc2e1f84d9au);
}

// Goal: scales have the roundings of torch's division of a number by a tensor, for the largest
// values of many blocks.
TEST(Fp8, HasTheScalesOfTransformersInManyBlocks) {
  constexpr int64_t kColumns = 8192;
  std::vector<float> values = example(128 * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto block = static_cast<double>(i % kColumns / 128);
    values[i] = static_cast<float>(double{values[i]} * (1.0 + block / 37.0));
  }
  std::vector<float> scales(kColumns / 128);
  std::vector<uint8_t> codes(values.size());
  encode_fp8_rows(values, kColumns, Fp8Scale::kF32, scales, codes);
  EXPECT_EQ(digest(std::as_bytes(std::span(scales))), 0x50140f469c18b1f5u);
  EXPECT_EQ(digest(std::as_bytes(std::span(codes))), 0x96acf8bc16b14edfu);
}

// Goal: scales that are powers of two (scale_fmt "ue8m0") are those of transformers, with its
// codes.
TEST(Fp8, HasTheBitsOfTransformersForPowersOfTwo) {
  const Fp8Layout layout(128, 256);
  std::vector<float> scales(static_cast<size_t>(layout.block_columns()));
  const std::vector<float> values = example(layout.elements());
  std::vector<uint8_t> codes(values.size());
  encode_fp8_rows(values, layout.columns(), Fp8Scale::kPowerOfTwo, scales, codes);
  EXPECT_EQ(digest(std::as_bytes(std::span(scales))), 0x574665ed1ef080d5u);
  EXPECT_EQ(digest(std::as_bytes(std::span(codes))), 0x7f8b54f9cbee44ceu);
}

// Goal: a scale in bf16 is the nearest to that in fp32, and codes are of values over the scale as
// it is stored, so that the largest value of a block is off by no more than the scale's rounding.
TEST(Fp8, DividesByTheScaleThatIsStored) {
  const std::vector<float> values = example(128 * 256);
  std::vector<float> exact(2), scales(2);
  std::vector<uint8_t> codes(values.size());
  encode_fp8_rows(values, 256, Fp8Scale::kF32, exact, codes);
  encode_fp8_rows(values, 256, Fp8Scale::kBF16, scales, codes);
  for (size_t block = 0; block < 2; ++block) {
    EXPECT_EQ(scales[block], bf16_to_float(float_to_bf16_nearest(exact[block])));
    for (size_t i = 0; i < 128; ++i) {
      const float quotient = values[block * 128 + i] * (1.0F / scales[block]);
      const float number = e4m3_numbers()[codes[block * 128 + i]];
      EXPECT_LE(std::fabs(number - quotient), std::max(std::fabs(quotient) / 16.0F, 0x1p-10F));
    }
  }
}

// Numbers of the format are packed exactly, in blocks that are cut by the matrix's end too, and any
// range gives the values of the whole. A block of zeros stays zeros.
TEST(Fp8, KeepsWhatItCanHoldInBlocksOfAnySize) {
  for (const auto& [rows, columns] :
       {std::pair(1, 1), std::pair(3, 130), std::pair(129, 5), std::pair(130, 258)}) {
    const Fp8Layout layout(rows, columns);
    std::vector<float> values;
    for (int64_t i = 0; i < layout.elements(); ++i) {
      const float number = e4m3_numbers()[static_cast<size_t>(i * 5 % 127)];
      values.push_back(i % columns >= 256 ? 0.0F : number * (i % 2 == 0 ? 0.25F : -0.25F));
    }
    // The largest number makes the scale a power of two.
    for (int64_t row = 0; row < rows; row += 128) {
      for (int64_t column = 0; column < std::min<int64_t>(columns, 256); column += 128) {
        values[static_cast<size_t>(row * columns + column)] = 112.0F;
      }
    }
    const std::vector<std::byte> bytes = packed(layout, values);
    std::vector<float> out(values.size());
    decode_fp8(layout, bytes, 0, out);
    EXPECT_EQ(out, values) << rows << " x " << columns;
    const size_t begin = values.size() / 3;
    std::vector<float> part(values.size() - begin);
    decode_fp8(layout, bytes, static_cast<int64_t>(begin), part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + static_cast<int64_t>(begin)));
  }
}

// Each code but those of NaN is one number, in order, from 2^-9 to 448.
TEST(Fp8, HasTheNumbersOfE4m3) {
  const std::array<float, 256>& numbers = e4m3_numbers();
  EXPECT_EQ(numbers[1], std::ldexp(1.0F, -9));
  EXPECT_EQ(numbers[8], std::ldexp(1.0F, -6));
  EXPECT_EQ(numbers[0x38], 1.0F);
  EXPECT_EQ(numbers[0x7E], 448.0F);
  for (size_t code = 1; code < 0x7F; ++code) {
    EXPECT_LT(numbers[code - 1], numbers[code]);
    EXPECT_EQ(numbers[code + 128], -numbers[code]);
  }
  EXPECT_TRUE(std::isnan(numbers[0x7F]) && std::isnan(numbers[0xFF]));
}

}  // namespace
}  // namespace longshore
