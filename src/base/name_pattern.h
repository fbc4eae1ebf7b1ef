// NamePattern: a regular expression in the syntax of Python's `re` over names of modules
// ("model.layers.0.self_attn.q_proj"), as PEFT's settings have them. A pattern may come from
// outside, so its length and the matcher's time are bounded, and what std::regex would match
// otherwise than Python is refused. Plain values; const calls are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "base/adapter_values.h"

namespace longshore {

class NamePattern {
 public:
  enum class Scope : uint8_t {
    kWhole,  // the pattern matches a whole name (re.fullmatch)
    kEnd     // it matches a whole name, or all that follows one of its dots
  };
  // Throws ConfigError, whose message has the part of the pattern that is not read.
  NamePattern(const std::string& pattern, Scope scope);

  // A name of more than kLongestName bytes does not match.
  bool matches(std::string_view name) const;
  static constexpr size_t kLongestName = 1024;

 private:
  bool read_plain(std::string_view pattern, Scope scope);

  // Most patterns are names: their characters, in which kAnyCharacter stands for ".".
  static constexpr char kAnyCharacter = '\0';
  std::string plain_;
  bool at_start_ = false;            // plain_ matches whole names alone
  std::optional<std::regex> regex_;  // if the pattern is no name
};

// NumbersByPattern: PEFT's rank_pattern or alpha_pattern. The first pattern that matches a name
// gives it its number (peft.utils.other.get_pattern_key).
class NumbersByPattern {
 public:
  static constexpr size_t kMostPatterns = 4096;
  // Throws ConfigError for a pattern that is not read and for more than kMostPatterns.
  explicit NumbersByPattern(const std::vector<PatternNumber>& list);

  std::optional<double> number_of(std::string_view name) const;
  // Returns the first pattern that matches none of the names; nullopt if each matches one.
  std::optional<std::string> pattern_without(const std::vector<std::string>& names) const;

 private:
  struct Entry {
    PatternNumber given;
    NamePattern pattern;
  };
  std::vector<Entry> entries_;
};

}  // namespace longshore
