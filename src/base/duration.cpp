#include "base/duration.h"

#include <array>
#include <charconv>
#include <cstdint>
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

}  // namespace longshore
