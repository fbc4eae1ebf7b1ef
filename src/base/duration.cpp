#include "base/duration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace longshore {
namespace {

constexpr std::array<std::pair<std::string_view, int64_t>, 4> kUnits = {
    {{"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};
constexpr int64_t kLongestMs = 1000LL * 24 * 3'600'000;

}  // namespace

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const auto& [name, milliseconds] : kUnits) {
    if (unit != name) continue;
    if (number > kLongestMs / milliseconds) return std::nullopt;
    return std::chrono::milliseconds(number * milliseconds);
  }
  return std::nullopt;
}

std::string format_duration(std::chrono::milliseconds duration) {
  for (const auto& [name, milliseconds] : kUnits) {
    if (duration.count() % milliseconds == 0 && (duration.count() != 0 || name == "s")) {
      return std::to_string(duration.count() / milliseconds) + std::string(name);
    }
  }
  return "";
}

std::string format_duration(double seconds) {
  const long long whole = std::isfinite(seconds) ? std::max(0ll, std::llround(seconds)) : 0;
  const long long minutes = whole / 60 % 60;
  const long long hours = whole / 3600;
  char text[64];
  if (hours >= 24) {
    std::snprintf(text, sizeof text, "%lldd %02lld:%02lld", hours / 24, hours % 24, minutes);
  } else if (hours > 0) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", hours, minutes, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", minutes, whole % 60);
  }
  return text;
}

}  // namespace longshore
