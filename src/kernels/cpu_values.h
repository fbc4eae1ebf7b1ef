// cpu_values: reads, rounds and writes values of a dtype on the CPU, for the reference kernels.
// Internal to src/kernels; any thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore::kernels {

struct Bf16 {
  uint16_t bits = 0;
};

inline float to_float(float value) {
  return value;
}
inline float to_float(Bf16 value) {
  return bf16_to_float(value.bits);
}
template <typename T>
T rounded_to(float value);
template <>
inline float rounded_to<float>(float value) {
  return value;
}
template <>
inline Bf16 rounded_to<Bf16>(float value) {
  return {float_to_bf16_nearest(value)};
}
// Returns the value after rounding to T.
template <typename T>
float rounded(float value) {
  return to_float(rounded_to<T>(value));
}

// Calls body(T()) with the C++ type of the dtype.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  LONGSHORE_CHECK(dtype != DType::kF16) << "kernels compute in fp32 and bf16";
  if (dtype == DType::kF32) {
    body(float());
  } else {
    body(Bf16());
  }
}

}  // namespace longshore::kernels
