// Bytes: sizes with checked arithmetic and their text forms ("24GiB", "1.5 GiB"). Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace longshore {

// A number of bytes.
using Bytes = int64_t;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

// Both return nullopt when the result does not fit or an argument is negative.
std::optional<int64_t> checked_add(int64_t a, int64_t b);
std::optional<int64_t> checked_multiply(int64_t a, int64_t b);

// Returns the least multiple of `alignment` (> 0) that is >= `value` (>= 0).
constexpr int64_t align_up(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Formats a size: "512 B", "1.5 KiB", "24.0 GiB".
std::string format_bytes(Bytes bytes);

// Parses "24GiB", "24GB", "512MiB", "1.5GiB", "100B". Returns nullopt when the text is not a size;
// a number without a unit is not one.
std::optional<Bytes> parse_bytes(std::string_view text);

// Like format_bytes, with enough decimals to tell the two apart: "6.002 MiB", "6.000 MiB".
std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b);

// as_span: views bytes as elements of a type. The bytes must be aligned for it. Plain functions.

template <typename T>
std::span<T> as_span(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
std::span<const T> as_span(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace longshore
