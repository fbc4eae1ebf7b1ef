// Sketch: what the golden cases hold of a tensor in place of its values: the Euclidean norm, the
// largest element, and sums of all elements with random signs. tests/parity/sketches.py writes it
// and says how it finds differences. Pure; any thread. Test code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace longshore {

struct Sketch {
  std::vector<int64_t> shape;
  double norm = 0.0;
  size_t place = 0;  // of the element with the largest absolute value
  double largest = 0.0;
  std::array<double, 8> sums{};

  bool operator==(const Sketch&) const = default;
};

Sketch sketch_of(std::span<const float> values);

// Returns an estimate of the distance |values - expected|: the root of the mean square of the
// differences of the sums. It is exact if one element differs. The result is not less than the
// differences of the norm and of the expected largest element, which the distance cannot fall
// below either. Infinite if the number of elements differs; NaN if a value is NaN.
double distance(std::span<const float> values, const Sketch& expected);

// Returns |values - expected| / |expected| with that distance.
double relative_error(std::span<const float> values, const Sketch& expected);

// Returns the sketches of a golden_sketches.json by <kind>.<name>, such as "grad.lm_head.weight".
std::map<std::string, Sketch> read_sketches(const std::string& path);

}  // namespace longshore
