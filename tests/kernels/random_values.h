// Inputs of the CPU's kernels. Pure functions; test code.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"

namespace longshore::kernels {

// Returns values from -width / 2 to width / 2.
inline std::vector<float> random_values(int64_t count, uint32_t seed, double width = 1.0) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), seed, 0, 0}, {5, 29});
    values.push_back(static_cast<float>((bits[0] / 4294967296.0 - 0.5) * width));
  }
  return values;
}

}  // namespace longshore::kernels
