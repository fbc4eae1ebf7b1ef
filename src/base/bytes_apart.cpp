#include "base/bytes_apart.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace longshore {
namespace {

constexpr int kMostDecimals = 4;

std::string text_of(Bytes bytes, double unit, const char* name, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, static_cast<double>(bytes) / unit,
                name);
  return text.data();
}

}  // namespace

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
