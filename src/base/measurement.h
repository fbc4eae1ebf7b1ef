// Elapsed time, and statistics that a single outlier does not move. Plain functions, any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace longshore {

template <typename Clock, typename Duration>
double seconds_since(std::chrono::time_point<Clock, Duration> begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Returns the seconds since 1970.
inline double unix_seconds() {
  return seconds_since(std::chrono::system_clock::time_point());
}

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
