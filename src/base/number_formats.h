// Number formats: conversions of bf16 and fp16 to and from fp32, and the split of an fp32 master
// into two halves. Pure functions over single values; kernels inline them.
#pragma once

#include <bit>
#include <cstdint>

namespace longshore {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest even, as PyTorch does; NaN becomes 0x7fc0.
inline uint16_t float_to_bf16_nearest(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Returns the bf16 parameter of an fp32 master, rounded half up in magnitude. Every state format
// uses it for the parameter on the device, as only this rounding splits and joins exactly.
inline uint16_t master_high(float master) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(master) + 0x8000u) >> 16);
}

// Returns the low half of the master; with `master_high` it is a bijection on 32-bit patterns.
inline uint16_t master_low(float master) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(master) & 0xffffu);
}

// Inverts (master_high, master_low).
inline float join_master(uint16_t high, uint16_t low) {
  const uint32_t top = static_cast<uint16_t>(high - (low >= 0x8000u ? 1u : 0u));
  return std::bit_cast<float>(top << 16 | low);
}

float fp16_to_float(uint16_t bits);
// Rounds to nearest even; overflow becomes infinity.
uint16_t float_to_fp16_nearest(float value);

}  // namespace longshore
