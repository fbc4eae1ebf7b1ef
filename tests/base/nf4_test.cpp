// NF4 as bitsandbytes 0.50.2 packs and unpacks it on a CPU (quantize_4bit and dequantize_4bit with
// nf4, blocks of 64 and compress_statistics). Goal: the same bits.
#include "base/nf4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
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

// Exact in fp32: two groups of scales, a block of zeros, and a last block of 11 values.
std::vector<float> example() {
  std::vector<float> values;
  for (int64_t i = 0; i < 16523; ++i) {
    const auto draw = static_cast<double>((i * 7919 + 13) % 65536 - 32768);
    values.push_back(
        static_cast<float>(draw * static_cast<double>(64 + (i / 64 * 37) % 101) / 67108864.0));
  }
  std::fill(values.begin() + 320, values.begin() + 384, 0.0F);
  return values;
}

std::vector<std::byte> packed(const std::vector<float>& values) {
  const Nf4Layout layout(static_cast<int64_t>(values.size()));
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes()));
  encode_nf4(
      layout,
      [&values](int64_t begin, std::span<float> out) {
        std::copy_n(values.begin() + begin, out.size(), out.begin());
      },
      bytes);
  return bytes;
}

std::vector<float> unpacked(const std::vector<std::byte>& bytes, int64_t elements, int64_t begin,
                            int64_t end) {
  std::vector<float> values(static_cast<size_t>(end - begin));
  decode_nf4(Nf4Layout(elements), bytes, begin, values);
  return values;
}

TEST(Nf4, HasTheBitsOfBitsandbytes) {
  const std::vector<float> values = example();
  const auto elements = static_cast<int64_t>(values.size());
  const Nf4Layout layout(elements);
  const std::vector<std::byte> bytes = packed(values);
  const auto part = [&](Bytes begin, Bytes count) {
    return digest(std::span(bytes).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
  };
  EXPECT_EQ(part(layout.codes_begin(), (elements + 1) / 2), 0xa6c7f5460e438a05u);
  EXPECT_EQ(part(layout.scales_begin(), layout.blocks()), 0x67599fa3c4060a11u);
  EXPECT_EQ(part(layout.largest_begin(), 4 * layout.groups()), 0xbcbbbd82e546ea0fu);
  const std::vector<float> out = unpacked(bytes, elements, 0, elements);
  EXPECT_EQ(digest(std::as_bytes(std::span(out))), 0x967b4ab83e984732u);
  std::vector<uint16_t> rounded;
  for (const float value : out) rounded.push_back(float_to_bf16_nearest(value));
  EXPECT_EQ(digest(std::as_bytes(std::span(rounded))), 0x861b007a9161b64eu);
}

// Goal: any part of a tensor has the values of the whole, for lengths around a block and a group.
TEST(Nf4, GivesPartsOfATensor) {
  const std::vector<float> all = example();
  for (const int64_t elements : {1, 2, 63, 64, 65, 129, 16383, 16384, 16385}) {
    const std::vector<float> values(all.begin(), all.begin() + elements);
    const std::vector<std::byte> bytes = packed(values);
    const std::vector<float> whole = unpacked(bytes, elements, 0, elements);
    const int64_t middle = elements / 3;
    std::vector<float> parts = unpacked(bytes, elements, 0, middle);
    const std::vector<float> rest = unpacked(bytes, elements, middle, elements);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << elements;
    EXPECT_LE(Nf4Layout(elements).bytes() * 8, 4.13 * static_cast<double>(elements) + 512);
  }
}

// A value that is packed is at most half the widest step of the levels away, times its scale.
TEST(Nf4, StaysNearTheValues) {
  const std::vector<float> values = example();
  const std::vector<float> out = unpacked(packed(values), 16523, 0, 16523);
  for (size_t i = 0; i < values.size(); ++i) {
    float largest = 0.0F;
    const size_t begin = i / 64 * 64, end = std::min(begin + 64, values.size());
    for (size_t k = begin; k < end; ++k) largest = std::max(largest, std::abs(values[k]));
    EXPECT_LE(std::abs(out[i] - values[i]), 0.16F * largest + 1e-3F) << i;
  }
}

}  // namespace
}  // namespace longshore
