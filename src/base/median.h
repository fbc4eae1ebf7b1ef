// Median: robust statistics of measurements, which a single outlier must not move. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace longshore {

// Returns the element at rank `share` of the sorted values. `values` must not be empty.
inline double quantile_of(std::vector<double> values, double share) {
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(at), values.end());
  return values[at];
}

inline double median_of(const std::vector<double>& values) {
  return quantile_of(values, 0.5);
}

}  // namespace longshore
