#include "comm/collectives/rank_sums.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

// A tile of sums (8 KiB) stays in the L1 cache while the ranks are added one by one.
constexpr size_t kTile = 2048;

float widen(float value) {
  return value;
}
float widen(uint16_t value) {
  return bf16_to_float(value);
}

// Rounds a rank's own value as the wire dtype rounds the others'.
template <typename Wire>
float through_wire(float value);
template <>
float through_wire<float>(float value) {
  return value;
}
template <>
float through_wire<uint16_t>(float value) {
  return bf16_to_float(float_to_bf16_nearest(value));
}

template <typename Wire>
void add_all(std::span<float> own, size_t own_index,
             const std::vector<std::span<const Wire>>& others) {
  LONGSHORE_CHECK(own_index <= others.size()) << own_index;
  for (const auto& other : others) LONGSHORE_CHECK(other.size() == own.size()) << other.size();
  std::array<float, kTile> sums;
  for (size_t begin = 0; begin < own.size(); begin += kTile) {
    const size_t count = std::min(kTile, own.size() - begin);
    float* const mine = own.data() + begin;
    for (size_t rank = 0; rank <= others.size(); ++rank) {
      if (rank == own_index) {
        if (rank == 0) {
          for (size_t i = 0; i < count; ++i) sums[i] = through_wire<Wire>(mine[i]);
        } else {
          for (size_t i = 0; i < count; ++i) sums[i] += through_wire<Wire>(mine[i]);
        }
        continue;
      }
      const Wire* const theirs = others[rank < own_index ? rank : rank - 1].data() + begin;
      if (rank == 0) {
        for (size_t i = 0; i < count; ++i) sums[i] = widen(theirs[i]);
      } else {
        for (size_t i = 0; i < count; ++i) sums[i] += widen(theirs[i]);
      }
    }
    std::copy_n(sums.data(), count, mine);
  }
}

}  // namespace

void to_bf16(std::span<const float> values, std::span<uint16_t> rounded) {
  LONGSHORE_CHECK(values.size() == rounded.size()) << rounded.size();
  for (size_t i = 0; i < values.size(); ++i) rounded[i] = float_to_bf16_nearest(values[i]);
}

void add_in_rank_order(std::span<float> own, size_t own_index,
                       const std::vector<std::span<const float>>& others) {
  add_all(own, own_index, others);
}

void add_in_rank_order(std::span<float> own, size_t own_index,
                       const std::vector<std::span<const uint16_t>>& others) {
  add_all(own, own_index, others);
}

}  // namespace longshore
