#include "base/json.h"

#include <algorithm>
#include <iterator>
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

// Builds the value from the parser's events and refuses input that the parser accepts.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(std::string_view text, const JsonLimits& limits, const std::string& origin)
      : text_(text), limits_(limits), origin_(origin), reached_(text.data()) {}

  const char** reached() { return &reached_; }
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string& spelling) override {
    // The parser falls back to a real where an integer does not fit 64 bits.
    if (spelling.find_first_of(".eE") == std::string::npos) fail("an integer outside 64 bits");
    return add(value) != nullptr;
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
  const char* reached_;
  Json root_;
  std::vector<Open> open_;
  std::string key_;
  int64_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits, const std::string& origin) {
  if (static_cast<Bytes>(text.size()) > limits.max_bytes) {
    throw DataError(origin + ": longer than the limit of " + format_bytes(limits.max_bytes));
  }
  StrictBuilder builder(text, limits, origin);
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

Json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_whole_file(path, limits.max_bytes), limits, path);
}

}  // namespace longshore
