// Stands in for CUDA's cuda_bf16.h where kernels are compiled for the host: conversions with CUDA's
// own results, whose NaN is 0x7fff. Pure functions.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return {0x7fff};
  const uint32_t half = 0x7fffu + (bits >> 16 & 1u);  // to nearest, ties to even
  return {static_cast<uint16_t>((bits + half) >> 16)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits;
}
