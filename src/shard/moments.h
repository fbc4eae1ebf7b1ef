// Storage formats of an update rule's state, and the scalar form of every code. Pure functions; the
// kernels of offload/ give the same bits. A moment is an average of gradients (the first kind, with
// a sign) or of their squares (the second).
//
//   kF32    unchanged
//   kBF16   bf16, rounded stochastically
//   kInt8   blocks of 128 elements that share an fp32 scale (the `unit`). A code is the top of the
//           float y = magnitude / unit + origin, counted from a power of two, 4 bits per octave:
//           linear near zero, then ever coarser, at most 1/16 of the value. The scale maps the
//           block's largest magnitude to the last code. The first moment spends a bit on the sign
//           and has 8 octaves. The second has 16 and no zero: its code 0 means one step, because
//           dividing by the root of a zeroed second moment would blow the update up.
//
// Blocks count from the parameter's start; shards and tiles begin on multiples of 256.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/random.h"

namespace longshore {

enum class MomentFormat : uint8_t { kF32, kBF16, kInt8 };

// The properties that distinguish the formats.
struct MomentTraits {
  MomentFormat format;
  Bytes width;             // bytes of an element
  int64_t block_elements;  // elements per fp32 scale; 0: no scales
};
// The number of elements that share a scale in kInt8.
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
// Returns the scales that `elements` elements from a block's start need; 0 without scales.
constexpr int64_t moment_blocks(MomentFormat format, int64_t elements) {
  const int64_t block = traits_of(format).block_elements;
  return block == 0 ? 0 : (elements + block - 1) / block;
}

// One moment of a range of elements.
struct MomentSpan {
  MomentFormat format = MomentFormat::kF32;
  std::span<std::byte> values;
  std::span<float> units;  // the scales of kInt8, one per block

  bool empty() const { return values.empty(); }
  size_t elements() const { return values.size() / static_cast<size_t>(width_of(format)); }
  // For kInt8 `begin` must be the start of a block.
  MomentSpan part(int64_t begin, int64_t elements) const;
  // Views the values of kF32.
  std::span<float> f32() const {
    return {reinterpret_cast<float*>(values.data()), values.size() / sizeof(float)};
  }
};

enum class Moment : uint8_t { kFirst, kSecond };

// Which parameters have a region: all, those that are updated element by element, or those that are
// updated as whole matrices (Segment::kWholeMatrices).
enum class RegionUse : uint8_t { kAll, kElements, kMatrices };

// StateRegion: what an update rule keeps beside each trained parameter, a value per element. A rule
// has a list of them; tiers, plans, drives and checkpoints read the list and know no rule.
struct StateRegion {
  std::string_view name;                    // in checkpoints; unlike the rule's others and "master"
  Moment moment = Moment::kFirst;           // whose codes and random bits narrow formats use
  std::optional<MomentFormat> format = {};  // of all parameters; empty: the run's state format says
  RegionUse use = RegionUse::kAll;          // the parameters beside which it is kept

  bool operator==(const StateRegion&) const = default;
};

inline constexpr std::array<StateRegion, 2> kAdamWRegions = {
    {{"exp_avg", Moment::kFirst}, {"exp_avg_sq", Moment::kSecond}}};

// The random bits of an update come from ARS calls with the counter (call, update). Threads, tiles,
// ranks and resuming therefore do not change them, and no state is stored. Elements count from the
// start of the whole parameter; eight share a call and two share a word. The bits that round one
// element's first moment round the other's second, so that an element's moments are independent.
struct RoundingStream {
  ArsKey key;  // from the run's seed and the parameter's name
  // Offset of the slice in the whole parameter: a multiple of 256, unless it is a whole matrix.
  uint64_t first_element = 0;
  uint64_t update = 0;
};

inline std::array<uint32_t, 4> random_words(const RoundingStream& stream, uint64_t call) {
  return ars4x32({static_cast<uint32_t>(call), static_cast<uint32_t>(call >> 32),
                  static_cast<uint32_t>(stream.update), static_cast<uint32_t>(stream.update >> 32)},
                 stream.key);
}

// Returns the word that an element shares with its neighbour.
inline uint32_t random_word(const RoundingStream& stream, uint64_t element) {
  return random_words(stream, element / 8)[element % 8 / 2];
}
inline bool takes_upper_bits(Moment which, uint64_t element) {
  return (element % 2 == 1) == (which == Moment::kFirst);
}

// Returns the 16 random bits that round a moment to bf16.
inline uint32_t random16(const RoundingStream& stream, Moment which, uint64_t element_of_slice) {
  const uint64_t element = stream.first_element + element_of_slice;
  const uint32_t word = random_word(stream, element);
  return takes_upper_bits(which, element) ? word >> 16 : word & 0xffffu;
}

// Returns the 19 random bits that round a moment to a code. Both elements of a pair take six bits
// of their word: the highest bits of one and the lowest of the other, which matter once in 8192.
inline uint32_t random19(const RoundingStream& stream, Moment which, uint64_t element_of_slice) {
  const uint64_t element = stream.first_element + element_of_slice;
  const uint32_t word = random_word(stream, element);
  return takes_upper_bits(which, element) ? word >> 13 : word & 0x7ffffu;
}

// Keeps the upper half and adds one if the lower half exceeds the random bits, so that the mean is
// exact. Infinity and NaN are truncated, and no finite value becomes infinite.
inline uint16_t float_to_bf16_stochastic(float value, uint32_t random16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool may_grow = (bits & 0x7fff0000u) < 0x7f7f0000u;
  const uint32_t up = may_grow && (bits & 0xffffu) > random16 ? 1u : 0u;
  return static_cast<uint16_t>((bits >> 16) + up);
}

// The curve that maps magnitudes to codes.
struct MomentCurve {
  float origin;        // the y of zero
  uint32_t base_bits;  // bits of the y of code 0
  float top;           // the value of the last code, divided by the scale
  uint32_t last_code;
};
// The version of the curves below; drives and checkpoints with codes of another are refused.
inline constexpr int kMomentCodeVersion = 2;
inline constexpr uint32_t kMomentCodeShift = 19;
inline constexpr MomentCurve kFirstMomentCurve = {0x1p-7f, 0x3c000000u, 1.9375f - 0x1p-7f, 127};
inline constexpr MomentCurve kSecondMomentCurve = {0x1.ep-16f, 0x38000000u, 1.9375f - 0x1.ep-16f,
                                                   255};

// Half a step: used as random bits it rounds to nearest.
inline constexpr uint32_t kNearest19 = 0x40000u;

// The limits keep the scale and its inverse finite and normal for all moments.
inline constexpr float kLeastLargest = 0x1p-100f;
inline constexpr float kMostLargest = 0x1p126f;
inline float moment_unit(const MomentCurve& curve, float largest) {
  return std::min(std::max(largest, kLeastLargest), kMostLargest) * (1.0f / curve.top);
}

// Encodes a magnitude; `inverse` is 1 / unit.
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

// Writes the same elements, rounded to nearest in narrower formats. kInt8 needs whole blocks; only
// the last block of a parameter may be shorter.
void write_moments(Moment which, const MomentSpan& to, int64_t begin,
                   std::span<const float> values);

}  // namespace longshore
