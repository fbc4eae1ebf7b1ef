#include "model/random_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "base/hash.h"
#include "base/random.h"

namespace longshore {
namespace {

// Maps bits to (0, 1): never 0, because its logarithm is infinite.
double to_unit(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

// Returns four normal values, as two Box-Muller pairs, from one call of the generator.
std::array<double, 4> four_normals(uint64_t block, PhiloxKey key) {
  const auto bits =
      philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
  std::array<double, 4> values{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(to_unit(bits[2 * pair])));
    const double angle = 2.0 * std::numbers::pi * to_unit(bits[2 * pair + 1]);
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

}  // namespace

void fill_random(std::string_view name, const InitSpec& init, uint64_t seed, int64_t element_begin,
                 std::span<float> values) {
  LONGSHORE_CHECK(element_begin >= 0) << element_begin;
  if (init.kind != InitSpec::Kind::kNormal) {
    std::fill(values.begin(), values.end(), init.kind == InitSpec::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t mixed = hash64(name) ^ (seed * 0x9E3779B97F4A7C15u);
  const PhiloxKey key{static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  std::array<double, 4> normals{};
  for (size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<uint64_t>(element_begin) + i;
    if (i == 0 || element % 4 == 0) normals = four_normals(element / 4, key);
    values[i] = static_cast<float>(init.standard_deviation * normals[element % 4]);
  }
}

}  // namespace longshore
