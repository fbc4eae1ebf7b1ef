// Moments: how Adam's two moments are stored, and the scalar form of every code. Pure functions;
// the kernels of offload/ give the same bits.
//
//   kF32    as they are
//   kBF16   bf16, rounded stochastically
//   kInt8   blocks of 128 elements that share an fp32 unit. A code is the top of the float
//           y = magnitude / unit + origin, counted from a power of two with 4 bits to an octave:
//           linear near zero, then ever coarser, at most 1/16 of the value. The unit puts the
//           block's largest magnitude on the last code. The first moment spends a bit on the sign
//           and has 8 octaves. The second has 16 and no zero: its code 0 means one step, because
//           dividing by the root of a lost second moment would blow the update up.
//
// Blocks are counted from the parameter's start; shards and tiles begin on multiples of 256.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ars.h"
#include "base/bytes.h"

namespace longshore {

enum class MomentFormat : uint8_t { kF32, kBF16, kInt8 };

// What tells one from another.
struct MomentTraits {
  MomentFormat format;
  Bytes width;             // of an element
  int64_t block_elements;  // that share an fp32 unit; 0: there are no units
};
// Elements that share a unit in kInt8.
inline constexpr int64_t kMomentBlockElements = 128;
inline constexpr std::array<MomentTraits, 3> kMomentFormats = {{
    {MomentFormat::kF32, 4, 0},
    {MomentFormat::kBF16, 2, 0},
    {MomentFormat::kInt8, 1, kMomentBlockElements},
}};

constexpr const MomentTraits& traits_of(MomentFormat format) {
  return *std::ranges::find(kMomentFormats, format, &MomentTraits::format);
}
constexpr Bytes width_of(MomentFormat format) {
  return traits_of(format).width;
}
constexpr bool has_scales(MomentFormat format) {
  return traits_of(format).block_elements > 0;
}
// Units of so many elements from a block's start; 0 where there are none.
constexpr int64_t moment_blocks(MomentFormat format, int64_t elements) {
  const int64_t block = traits_of(format).block_elements;
  return block == 0 ? 0 : (elements + block - 1) / block;
}

// One moment of a range of elements.
struct MomentSpan {
  MomentFormat format = MomentFormat::kF32;
  std::span<std::byte> values;
  std::span<float> units;  // of kInt8: one for each block

  bool empty() const { return values.empty(); }
  size_t elements() const { return values.size() / static_cast<size_t>(width_of(format)); }
  // kInt8: begins at a block.
  MomentSpan part(int64_t begin, int64_t elements) const;
  // Of kF32.
  std::span<float> f32() const {
    return {reinterpret_cast<float*>(values.data()), values.size() / sizeof(float)};
  }
};

enum class Moment : uint8_t { kFirst, kSecond };

// Which random bits an update takes, from calls of ARS whose counter is (call, update): so threads,
// tiles, ranks and resuming change nothing, and no state is kept. Elements count from the start of
// the whole parameter; eight share a call, and two a word of it. What rounds the first moment of
// one of the two rounds the second of the other, so that an element's moments are independent.
struct RoundingStream {
  ArsKey key;                  // of the run's seed and the parameter's name
  uint64_t first_element = 0;  // of the slice in the whole parameter; a multiple of 256
  uint64_t update = 0;
};

inline std::array<uint32_t, 4> random_words(const RoundingStream& stream, uint64_t call) {
  return ars4x32({static_cast<uint32_t>(call), static_cast<uint32_t>(call >> 32),
                  static_cast<uint32_t>(stream.update), static_cast<uint32_t>(stream.update >> 32)},
                 stream.key);
}

// The word of an element and its neighbour.
inline uint32_t random_word(const RoundingStream& stream, uint64_t element) {
  return random_words(stream, element / 8)[element % 8 / 2];
}
inline bool takes_upper_bits(Moment which, uint64_t element) {
  return (element % 2 == 1) == (which == Moment::kFirst);
}

// For bf16.
inline uint32_t random16(const RoundingStream& stream, Moment which, uint64_t element_of_slice) {
  const uint64_t element = stream.first_element + element_of_slice;
  const uint32_t word = random_word(stream, element);
  return takes_upper_bits(which, element) ? word >> 16 : word & 0xffffu;
}

// For codes. The six bits that both halves take are the highest of one and the lowest of the other,
// where they decide once in 8192 times.
inline uint32_t random19(const RoundingStream& stream, Moment which, uint64_t element_of_slice) {
  const uint64_t element = stream.first_element + element_of_slice;
  const uint32_t word = random_word(stream, element);
  return takes_upper_bits(which, element) ? word >> 13 : word & 0x7ffffu;
}

// bf16: the upper half, one further from zero where the lower half is above the random one. Right
// on average. Infinity and NaN are only cut, and nothing finite becomes infinite.
inline uint16_t float_to_bf16_stochastic(float value, uint32_t random16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool may_grow = (bits & 0x7fff0000u) < 0x7f7f0000u;
  const uint32_t up = may_grow && (bits & 0xffffu) > random16 ? 1u : 0u;
  return static_cast<uint16_t>((bits >> 16) + up);
}

// A code's curve.
struct MomentCurve {
  float origin;        // the y of zero
  uint32_t base_bits;  // of the y of code 0
  float top;           // what the last code means, over the unit
  uint32_t last_code;
};
// Of the curves below: drives and checkpoints that hold codes of others are refused.
inline constexpr int kMomentCodeVersion = 2;
inline constexpr uint32_t kMomentCodeShift = 19;
inline constexpr MomentCurve kFirstMomentCurve = {0x1p-7f, 0x3c000000u, 1.9375f - 0x1p-7f, 127};
inline constexpr MomentCurve kSecondMomentCurve = {0x1.ep-16f, 0x38000000u, 1.9375f - 0x1.ep-16f,
                                                   255};

// The half of a step: as random bits it means rounding to nearest.
inline constexpr uint32_t kNearest19 = 0x40000u;

// The limits keep unit and 1 / unit finite and normal, whatever the moments are.
inline constexpr float kLeastLargest = 0x1p-100f;
inline constexpr float kMostLargest = 0x1p126f;
inline float moment_unit(const MomentCurve& curve, float largest) {
  return std::min(std::max(largest, kLeastLargest), kMostLargest) * (1.0f / curve.top);
}

// Of a magnitude; `inverse` is 1 / unit.
inline uint32_t encode_magnitude(const MomentCurve& curve, float magnitude, float inverse,
                                 uint32_t random_bits) {
  const float y = std::fma(magnitude, inverse, curve.origin);
  const auto above =
      static_cast<int32_t>(std::bit_cast<uint32_t>(y) - curve.base_bits + random_bits);
  return static_cast<uint32_t>(
      std::clamp(above >> kMomentCodeShift, 0, static_cast<int32_t>(curve.last_code)));
}

inline float decode_magnitude(const MomentCurve& curve, uint32_t code, float unit) {
  const uint32_t bits = curve.base_bits + (code << kMomentCodeShift);
  return std::fma(std::bit_cast<float>(bits), unit, -(curve.origin * unit));
}

inline uint8_t encode_first_moment(float m, float inverse, uint32_t random_bits) {
  const uint32_t sign = std::bit_cast<uint32_t>(m) >> 31;
  const uint32_t code = encode_magnitude(kFirstMomentCurve, std::fabs(m), inverse, random_bits);
  return static_cast<uint8_t>(sign << 7 | code);
}

inline float decode_first_moment(uint8_t code, float unit) {
  const float magnitude = decode_magnitude(kFirstMomentCurve, code & 0x7fu, unit);
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

inline uint8_t encode_second_moment(float v, float inverse, uint32_t random_bits) {
  return static_cast<uint8_t>(encode_magnitude(kSecondMomentCurve, v, inverse, random_bits));
}

inline float decode_second_moment(uint8_t code, float unit) {
  return decode_magnitude(kSecondMomentCurve, code, unit);
}

// Reads elements [begin, begin + values.size()) as fp32, exactly.
void read_moments(Moment which, const MomentSpan& from, int64_t begin, std::span<float> values);

// Writes the same elements, rounded to nearest where the format is narrower. kInt8 wants whole
// blocks; only the last block of a parameter may be shorter.
void write_moments(Moment which, const MomentSpan& to, int64_t begin,
                   std::span<const float> values);

}  // namespace longshore
