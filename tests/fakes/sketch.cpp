#include "tests/fakes/sketch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "base/random.h"

namespace longshore {

Sketch sketch_of(std::span<const float> values) {
  Sketch sketch;
  sketch.shape = {static_cast<int64_t>(values.size())};
  double squares = 0.0;
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    if (i % 16 == 0) words = philox4x32({static_cast<uint32_t>(i / 16), 0, 0, 0}, {});
    const uint32_t signs = words[i % 16 / 4] >> (8 * (i % 4));
    for (size_t k = 0; k < sketch.sums.size(); ++k) {
      sketch.sums[k] += (signs >> k & 1u) != 0 ? -value : value;
    }
    squares += value * value;
    if (std::abs(value) > std::abs(sketch.largest)) {
      sketch.place = i;
      sketch.largest = value;
    }
  }
  sketch.norm = std::sqrt(squares);
  return sketch;
}

double distance(std::span<const float> values, const Sketch& expected) {
  int64_t elements = 1;
  for (const int64_t size : expected.shape) elements *= size;
  if (static_cast<int64_t>(values.size()) != elements) {
    return std::numeric_limits<double>::infinity();
  }
  const Sketch found = sketch_of(values);
  double squares = 0.0;
  for (size_t k = 0; k < found.sums.size(); ++k) {
    squares += (found.sums[k] - expected.sums[k]) * (found.sums[k] - expected.sums[k]);
  }
  // A NaN in the first argument of std::max is its result.
  double result = std::sqrt(squares / static_cast<double>(found.sums.size()));
  result = std::max(result, std::abs(found.norm - expected.norm));
  return std::max(result, std::abs(values[expected.place] - expected.largest));
}

double relative_error(std::span<const float> values, const Sketch& expected) {
  return distance(values, expected) / std::max(expected.norm, 1e-15);
}

std::map<std::string, Sketch> read_sketches(const std::string& path) {
  const Json file = read_json_file(path, JsonLimits{});
  std::map<std::string, Sketch> sketches;
  for (const auto& [name, members] : file.items()) {
    for (const auto& [kind, numbers] : members.items()) {
      if (kind == "shape") continue;
      Sketch& sketch = sketches[kind + "." + name];
      sketch.shape = members.at("shape").get<std::vector<int64_t>>();
      sketch.norm = numbers.at(0).get<double>();
      sketch.place = numbers.at(1).get<size_t>();
      sketch.largest = numbers.at(2).get<double>();
      for (size_t k = 0; k < sketch.sums.size(); ++k) {
        sketch.sums[k] = numbers.at(3 + k).get<double>();
      }
    }
  }
  return sketches;
}

}  // namespace longshore
