// value_sums: structs of sums that are added and packed by a list of their members. The method
// values() of each returns references to its integers and doubles. Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

namespace longshore {

template <typename Sums>
inline constexpr size_t kValueCount = std::tuple_size_v<decltype(std::declval<Sums&>().values())>;

// Adds each value of `other` to the one of `sums`, which it returns.
template <typename Sums>
Sums& add_values(Sums& sums, Sums other) {
  [to = sums.values(), from = other.values()]<size_t... I>(std::index_sequence<I...>) {
    ((std::get<I>(to) += std::get<I>(from)), ...);
  }(std::make_index_sequence<kValueCount<Sums>>());
  return sums;
}

template <typename Sums>
std::array<double, kValueCount<Sums>> packed_values(Sums sums) {
  return std::apply([](const auto&... value) { return std::array{static_cast<double>(value)...}; },
                    sums.values());
}

// Returns the sums from which packed_values() made `values`.
template <typename Sums>
Sums unpacked_values(std::span<const double> values) {
  Sums sums;
  auto read = [next = values.begin()](auto& value) mutable {
    value = static_cast<std::remove_reference_t<decltype(value)>>(*next++);
  };
  std::apply([&](auto&... value) mutable { (read(value), ...); }, sums.values());
  return sums;
}

}  // namespace longshore
