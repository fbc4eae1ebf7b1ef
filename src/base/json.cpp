#include "base/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/file.h"

namespace longshore {
namespace {

// Iterates over the text and publishes the parser's position, which its events do not carry.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackedIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const TrackedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

enum class LargeIntegers { kRefused, kBinary };

// Builds the value from the parser's events and refuses input that the parser accepts.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(std::string_view text, const JsonLimits& limits, const std::string& origin,
                LargeIntegers large)
      : text_(text), limits_(limits), origin_(origin), large_(large), reached_(text.data()) {}

  const char** reached() { return &reached_; }
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string& spelling) override {
    // The parser falls back to a real where an integer does not fit 64 bits.
    if (spelling.find_first_of(".eE") != std::string::npos) return add(value) != nullptr;
    if (large_ == LargeIntegers::kRefused) fail("an integer outside 64 bits");
    return add(Json::binary(Json::binary_t::container_type(spelling.begin(), spelling.end()))) !=
           nullptr;
  }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t& /*value*/) override { return false; }

  bool start_object(size_t /*elements*/) override { return open(Json::object()); }
  bool start_array(size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (!open_.back().keys.insert(name).second) fail("key \"" + shown(name) + "\" occurs twice");
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    reached_ = text_.data() + std::min(position, text_.size());
    fail(reason(error.what()));
  }

  [[noreturn]] void fail(const std::string& what) const {
    const auto line = 1 + std::count(text_.data(), reached_, '\n');
    throw DataError(origin_ + ":" + std::to_string(line) + ": " + what + " (byte " +
                    std::to_string(reached_ - text_.data()) + ")");
  }

 private:
  struct Open {
    Json* container;
    std::unordered_set<std::string> keys;
  };

  static std::string shown(const std::string& name) {
    constexpr size_t kMaxShown = 80;
    const std::string quoted =
        Json(name.substr(0, kMaxShown)).dump(-1, ' ', true, Json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2) + (name.size() > kMaxShown ? "..." : "");
  }

  // Cuts the reason out of the library's "[id] parse error at line 1, column 2: reason; last read:
  // 'text'" and "[id] number overflow parsing 'text'". The quoted text may be long and is dropped.
  static std::string reason(const std::string& what) {
    if (what.find("number overflow") != std::string::npos) return "a number outside fp64";
    const size_t column = what.find(", column ");
    const size_t colon = column == std::string::npos ? column : what.find(": ", column);
    if (colon == std::string::npos) return "not JSON";
    const size_t first = colon + 2;
    return "not JSON: " + what.substr(first, what.find("; last read", first) - first);
  }

  // Returns the address of the stored value. The parent of an open container does not grow, so that
  // pointers to open containers stay valid.
  Json* add(Json value) {
    if (++values_ > limits_.max_values) {
      fail("more than " + std::to_string(limits_.max_values) + " values");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().container;
    if (parent.is_array()) {
      auto& elements = parent.get_ref<Json::array_t&>();
      return &elements.emplace_back(std::move(value));
    }
    // Bypasses the map's own insertion, which scans all keys; key() already checked by hash.
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }

  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      fail("nested deeper than " + std::to_string(limits_.max_depth));
    }
    Json* const added = add(std::move(container));
    open_.push_back({added, {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  const std::string& origin_;
  LargeIntegers large_;
  const char* reached_;
  Json root_;
  std::vector<Open> open_;
  std::string key_;
  int64_t values_ = 0;
};

// Returns the end of the string that begins at `at`; the end of the text if it is unterminated.
size_t end_of_string(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

bool is_of_number(char letter) {
  return (letter >= '0' && letter <= '9') || letter == '.' || letter == 'e' || letter == 'E' ||
         letter == '+' || letter == '-';
}

// How numbers are written that JSON or 64 bits cannot hold: non-finite ones as strings and large
// integers as reals, or non-finite ones as null and large integers as they are.
enum class Dialect { kConfig, kRow };

std::string not_finite(std::string_view spelling, Dialect dialect) {
  return dialect == Dialect::kRow ? "null" : '"' + std::string(spelling) + '"';
}

// Returns a spelling of the number that the dialect's reader accepts; nullopt if it can stay.
std::optional<std::string> rewritten(std::string_view number, Dialect dialect) {
  const char* const end = number.data() + number.size();
  const bool real = number.find_first_of(".eE") != std::string_view::npos;
  if (!real) {
    int64_t small = 0;
    uint64_t large = 0;
    if (std::from_chars(number.data(), end, small).ec == std::errc()) return std::nullopt;
    if (std::from_chars(number.data(), end, large).ec == std::errc()) return std::nullopt;
  }
  double value = 0.0;
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (stop != end) return std::nullopt;
  // An out-of-range value is too large, or so small that Python reads 0.
  if (error == std::errc::result_out_of_range) {
    const bool tiny =
        number.find("e-") != std::string_view::npos || number.find("E-") != std::string_view::npos;
    return tiny ? "0.0" : not_finite(number, dialect);
  }
  if (real || dialect == Dialect::kRow) return std::nullopt;
  return std::string(number) + ".0";
}

std::string rewritten_numbers(std::string_view text, Dialect dialect) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "Infinity", "-Infinity"};
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    std::optional<std::string> other;
    if (text[at] == '"') {
      end = end_of_string(text, at);
    } else if ((text[at] >= '0' && text[at] <= '9') || text[at] == '-') {
      while (end < text.size() && is_of_number(text[end])) ++end;
      other = rewritten(text.substr(at, end - at), dialect);
    }
    for (const std::string_view word : kWords) {
      if (text[at] == '"' || !text.substr(at).starts_with(word)) continue;
      end = at + word.size();
      other = not_finite(word, dialect);
    }
    out += other ? std::string_view(*other) : text.substr(at, end - at);
    at = end;
  }
  return out;
}

Json parse(std::string_view text, const JsonLimits& limits, const std::string& origin,
           LargeIntegers large) {
  if (static_cast<Bytes>(text.size()) > limits.max_bytes) {
    throw DataError(origin + ": longer than the limit of " + format_bytes(limits.max_bytes));
  }
  StrictBuilder builder(text, limits, origin, large);
  // The parser treats NUL as the end of the text.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    *builder.reached() = text.data() + nul;
    builder.fail("not JSON: a NUL byte");
  }
  const TrackedIterator begin(text.data(), builder.reached());
  const TrackedIterator end(text.data() + text.size(), builder.reached());
  const bool done = Json::sax_parse(begin, end, &builder);
  LONGSHORE_CHECK(done) << origin;
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits, const std::string& origin) {
  return parse(text, limits, origin, LargeIntegers::kRefused);
}

Json parse_python_json(std::string_view text, const JsonLimits& limits, const std::string& origin) {
  try {
    return parse(text, limits, origin, LargeIntegers::kBinary);
  } catch (const DataError&) {
    const std::string finite = rewritten_numbers(text, Dialect::kRow);
    if (finite == text) throw;
    return parse(finite, limits, origin, LargeIntegers::kBinary);
  }
}

Json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_whole_file(path, limits.max_bytes), limits, path);
}

std::string member_text(const Json& object, std::string_view key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string python_numbers(std::string_view text) {
  return rewritten_numbers(text, Dialect::kConfig);
}

}  // namespace longshore
