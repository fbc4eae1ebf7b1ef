// Inputs of emulated kernels and the measures that compare results. Pure functions; test code.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "kernels/cpu_values.h"

namespace longshore::emulation {

using kernels::Bf16;

template <typename T>
constexpr DType kDTypeOf = sizeof(T) == 4 ? DType::kF32 : DType::kBF16;

// Returns values of magnitude 0.5 to 1.5 and random sign: sums cancel, but no value is almost zero.
template <typename T>
std::vector<T> random_values(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::vector<T> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), seed, 0, 0}, {5, 23});
    const auto magnitude = static_cast<float>(0.5 + bits[0] / 4294967296.0) * scale;
    values.push_back(kernels::rounded_to<T>(bits[1] % 2 == 0 ? magnitude : -magnitude));
  }
  return values;
}

// Returns random numbers from 0 to `end` - 1.
inline std::vector<int64_t> random_numbers(int64_t count, int64_t end, uint32_t seed) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), seed, 1, 0}, {5, 23});
    numbers.push_back(static_cast<int64_t>(bits[0] % static_cast<uint64_t>(end)));
  }
  return numbers;
}

template <typename T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}

// Returns the largest difference relative to the largest expected value; NaN if not finite.
template <typename T>
double relative_error(const std::vector<T>& got, const std::vector<T>& expected) {
  double error = 0.0, most = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(kernels::to_float(got[i])) -
                                       static_cast<double>(kernels::to_float(expected[i])));
    if (!std::isfinite(difference)) return NAN;
    error = std::max(error, difference);
    most = std::max(most, std::abs(static_cast<double>(kernels::to_float(expected[i]))));
  }
  return error / most;
}

// The tolerance that tests/model has for a GPU: fp32 sums in another order, one rounding to bf16.
template <typename T>
constexpr double kTolerance = sizeof(T) == 4 ? 4e-6 : 1.6e-2;

}  // namespace longshore::emulation
