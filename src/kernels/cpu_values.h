// cpu_values: reads, rounds and writes values of a dtype on the CPU.
// Internal to src/kernels; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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

// Writes the values [begin, end) of a tensor to `y`, rounded once. `decode(at, values)` gives those
// from `at` on.
template <typename Decode>
void write_decoded(DType dtype, int64_t begin, int64_t end, void* y, const Decode& decode) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    std::array<float, 1024> values{};
    for (int64_t at = begin; at < end;) {
      const auto count = static_cast<size_t>(std::min<int64_t>(1024, end - at));
      decode(at, std::span(values).first(count));
      T* const out = static_cast<T*>(y) + at;
      for (size_t i = 0; i < count; ++i) out[i] = rounded_to<T>(values[i]);
      at += static_cast<int64_t>(count);
    }
  });
}

}  // namespace longshore::kernels
