#include "base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/texts.h"

namespace longshore {
namespace {

struct SizeUnit {
  std::string_view name;
  Bytes bytes;
};

constexpr std::array<SizeUnit, 9> kSizeUnits = {{
    {"B", 1},
    {"kB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"KiB", kKiB},
    {"MiB", kMiB},
    {"GiB", kGiB},
    {"TiB", kGiB * 1024},
}};

std::optional<Bytes> unit_bytes(std::string_view name) {
  if (name == "KB") name = "kB";
  for (const SizeUnit& unit : kSizeUnits) {
    if (unit.name == name) return unit.bytes;
  }
  return std::nullopt;
}

constexpr int kMostDecimals = 4;

std::string text_of(Bytes bytes, double unit, const char* name, int decimals) {
  return formatted("%.*f %s", decimals, static_cast<double>(bytes) / unit, name);
}

}  // namespace

std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

std::optional<int64_t> checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::string format_bytes(Bytes bytes) {
  constexpr std::array<const char*, 5> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  const double magnitude = std::fabs(static_cast<double>(bytes));
  if (magnitude < 1024.0) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024.0;
  size_t name = 0;
  // 1023.95 would print as "1024.0", so it takes the next unit.
  while (std::fabs(value) >= 1023.95 && name + 1 < kNames.size()) {
    value /= 1024.0;
    ++name;
  }
  return formatted("%.1f %s", value, kNames[name]);
}

std::optional<Bytes> parse_bytes(std::string_view text) {
  size_t digits = 0;
  size_t points = 0;
  while (digits < text.size() &&
         ((text[digits] >= '0' && text[digits] <= '9') || (text[digits] == '.' && points++ == 0))) {
    ++digits;
  }
  const std::string_view number = text.substr(0, digits);
  if (number.empty() || number.front() == '.' || number.back() == '.') return std::nullopt;
  std::string_view name = text.substr(digits);
  if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  const std::optional<Bytes> unit = unit_bytes(name);
  if (!unit) return std::nullopt;
  if (points == 0) {
    int64_t whole = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), whole);
    if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
    return checked_multiply(whole, *unit);
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  const double bytes = std::floor(value * static_cast<double>(*unit));
  // Bytes cannot represent 2^63.
  if (!(bytes < 9223372036854775808.0)) return std::nullopt;
  return static_cast<Bytes>(bytes);
}

std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b) {
  std::pair<std::string, std::string> texts(format_bytes(a), format_bytes(b));
  if (a == b || texts.first != texts.second) return texts;
  constexpr std::array<const char*, 5> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double unit = 1024.0;
  size_t name = 0;
  while (std::fabs(static_cast<double>(a)) >= 1024.0 * unit && name + 1 < kNames.size()) {
    unit *= 1024.0;
    ++name;
  }
  for (int decimals = 2; decimals <= kMostDecimals; ++decimals) {
    texts = {text_of(a, unit, kNames[name], decimals), text_of(b, unit, kNames[name], decimals)};
    if (texts.first != texts.second) return texts;
  }
  return {std::to_string(a) + " B", std::to_string(b) + " B"};
}

}  // namespace longshore
