// Text formats of the table's types, bounds and values.
#include <charconv>
#include <cmath>
#include <utility>

#include "base/texts.h"
#include "config/field_table.h"
#include "config/toml_document.h"
#include "config/value_reader.h"

namespace longshore {
namespace {

// Returns an exact size in the largest unit that divides it.
std::string bytes_text(Bytes bytes) {
  constexpr std::array<std::pair<Bytes, const char*>, 3> kUnits = {
      {{kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes != 0 && bytes % unit == 0) return std::to_string(bytes / unit) + name;
  }
  return std::to_string(bytes) + "B";
}

// Formats a bound; whole numbers have neither exponent nor point.
std::string number_text(double number) {
  if (number == std::floor(number) && std::fabs(number) < 1e15) {
    return std::to_string(static_cast<int64_t>(number));
  }
  return real_text(number);
}

std::string base_type_text(const Key& key) {
  switch (key.type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInteger:
      return "integer";
    case KeyType::kReal:
      return "real";
    case KeyType::kRealPair:
      return "two reals";
    case KeyType::kReals:
      return "list of reals";
    case KeyType::kIntegers:
      return "list of integers";
    case KeyType::kString:
      return "string";
    case KeyType::kTable:
      return "table";
    case KeyType::kPatterns:
      return "table of numbers";
    case KeyType::kPath:
      return "path";
    case KeyType::kPaths:
      return "list of paths";
    case KeyType::kStrings:
      return "list of strings";
    case KeyType::kBytes:
      return "size";
    case KeyType::kUnits:
      return "\"block\" or a table";
    case KeyType::kGroups:
      return "list of tables";
    case KeyType::kDuration:
      return "duration";
    case KeyType::kChoice:
      break;
  }
  std::string text;
  for (size_t i = 0; i < key.choices.size(); ++i) {
    if (i > 0) text += i + 1 == key.choices.size() ? " or " : ", ";
    text += quote_toml(key.choices[i]);
  }
  return text;
}

std::string units_text(const UnitsChoice& units) {
  switch (units.kind) {
    case UnitsChoice::Kind::kBlock:
    case UnitsChoice::Kind::kHalf:
    case UnitsChoice::Kind::kPiece:
    case UnitsChoice::Kind::kAuto:
      return '"' + std::string(name_of(units.kind)) + '"';
    case UnitsChoice::Kind::kRows:
      return "{ rows = " + std::to_string(units.rows) + " }";
    case UnitsChoice::Kind::kClasses:
      return "{ classes = " + toml_list(units.classes) + " }";
    case UnitsChoice::Kind::kMinParameters:
      return "{ min_parameters = " + std::to_string(units.min_parameters) + " }";
    case UnitsChoice::Kind::kGroups:
      break;
  }
  return "{ groups = [" + joined(units.groups, ", ", toml_list) + "] }";
}

}  // namespace

std::string real_text(double number) {
  std::array<char, 32> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), result.ptr);
  const size_t exponent = text.find('e');
  if (exponent == std::string::npos) {
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
  // The exponent of "2e-05" is shortened to "2e-5".
  const size_t first_digit = exponent + 2;
  if (text[first_digit] == '0') text.erase(first_digit, 1);
  return text;
}

bool Bounds::contain(double number) const {
  if (min && (min_excluded ? !(number > *min) : !(number >= *min))) return false;
  if (max && (max_excluded ? !(number < *max) : !(number <= *max))) return false;
  return true;
}

std::string Bounds::text() const {
  if (!min && !max) return "";
  if (min && max && !min_excluded && !max_excluded) {
    return "from " + number_text(*min) + " to " + number_text(*max);
  }
  const std::string low =
      min ? (min_excluded ? "above " : "at least ") + number_text(*min) : std::string();
  const std::string high =
      max ? (max_excluded ? "below " : "at most ") + number_text(*max) : std::string();
  return low + (min && max ? " and " : "") + high;
}

std::string Key::type_text() const {
  return base_type_text(*this) + (unit.empty() ? "" : " (" + unit + ")") +
         (allows_auto ? " or \"auto\"" : "");
}

std::string toml_text(const Key& key, const KeyValue& value) {
  if (std::holds_alternative<AutoValue>(value)) return "\"auto\"";
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) {
    if (key.type == KeyType::kBytes) return '"' + bytes_text(*number) + '"';
    if (key.type == KeyType::kDuration) {
      return '"' + format_duration(std::chrono::milliseconds(*number)) + '"';
    }
    return std::to_string(*number);
  }
  if (const auto* number = std::get_if<double>(&value)) return real_text(*number);
  if (const auto* pair = std::get_if<std::array<double, 2>>(&value)) {
    return "[" + real_text((*pair)[0]) + ", " + real_text((*pair)[1]) + "]";
  }
  if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
    return "[" + joined(*reals, ", ", real_text) + "]";
  }
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    return "[" + joined(*integers, ", ", [](int64_t one) { return std::to_string(one); }) + "]";
  }
  if (const auto* string = std::get_if<std::string>(&value)) return quote_toml(*string);
  if (const auto* units = std::get_if<UnitsChoice>(&value)) return units_text(*units);
  if (const auto* groups = std::get_if<std::vector<ParameterGroup>>(&value)) {
    return groups_text(*groups);
  }
  if (const auto* patterns = std::get_if<std::vector<PatternNumber>>(&value)) {
    const auto entry = [](const PatternNumber& one) {
      return quote_toml(one.pattern) + " = " + number_text(one.number);
    };
    return patterns->empty() ? "{}" : "{ " + joined(*patterns, ", ", entry) + " }";
  }
  const auto& list = std::get<std::vector<std::string>>(value);
  if (key.type != KeyType::kTable) return toml_list(list);
  return list.empty() ? "{}" : "{ " + joined(list, ", ") + " }";
}

}  // namespace longshore
