#include "base/name_pattern.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

// A pattern's length times the numbers in its braces, which bounds the states of the matcher.
constexpr size_t kMostStates = 8192;
constexpr std::string_view kDigits = "0123456789";

bool is_letter_or_digit(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Returns the numbers of a repetition, "3,5}", multiplied; nullopt if Python reads it otherwise.
std::optional<size_t> repetitions(std::string_view braces) {
  const size_t digits = std::min(braces.find_first_not_of(kDigits), braces.size());
  if (digits == 0 || digits > 4) return std::nullopt;
  size_t states = std::stoul(std::string(braces.substr(0, digits))) + 1;
  const std::string_view most = braces.substr(digits);
  if (!most.starts_with(",")) return states;
  const size_t end = std::min(most.find_first_not_of(kDigits, 1), most.size());
  if (end > 5) return std::nullopt;
  if (end > 1) states *= std::stoul(std::string(most.substr(1, end - 1)));
  return states;
}

// Returns whether a second repetition follows one, "a*+" or "a**": Python takes these for
// possessive ones and errors, std::regex for repetitions of repetitions. `rest` follows the first
// one.
bool repeats_again(std::string_view rest) {
  if (rest.starts_with('?')) rest.remove_prefix(1);  // as few as possible, which both know
  return !rest.empty() && std::string_view("*+?{").find(rest.front()) != rest.npos;
}

// LookAheads: the parentheses of a pattern, read from left to right. The matcher runs a look-ahead
// anew at every character, so that its time is a power of the depth of look-aheads in look-aheads.
class LookAheads {
 public:
  // Returns whether this parenthesis opens a look-ahead in another one.
  bool open(bool look_ahead) {
    ++depth_;
    if (!look_ahead) return false;
    if (outer_ > 0) return true;
    outer_ = depth_;
    return false;
  }
  void close() {
    if (depth_ == outer_) outer_ = 0;
    if (depth_ > 0) --depth_;
  }

 private:
  size_t depth_ = 0, outer_ = 0;  // outer_: the depth of the look-ahead that is open; 0: none
};

// Returns why a pattern of Python's `re` would not be matched as Python does; empty if it would.
std::string unread_part(std::string_view pattern) {
  size_t states = pattern.size();
  bool in_class = false;
  LookAheads look_aheads;
  for (size_t i = 0; i < pattern.size() && states <= kMostStates; ++i) {
    const std::string_view rest = pattern.substr(i + 1);
    const char next = rest.empty() ? '0' : rest.front();
    if (pattern[i] == '\\') {
      constexpr std::string_view kKnown = "dDwWsSbB";
      if (is_letter_or_digit(next) && kKnown.find(next) == kKnown.npos) {
        return std::string(pattern.substr(i, 2));
      }
      ++i;
    } else if (in_class) {
      // Python knows no classes of POSIX, "[[:alpha:]]".
      if (pattern[i] == '[' && (next == ':' || next == '.' || next == '=')) return "[[";
      in_class = pattern[i] != ']';
    } else if (pattern[i] == '[') {
      // A bracket that comes first is a member of the class for Python alone.
      if (rest.starts_with("]") || rest.starts_with("^]")) return "[]";
      in_class = true;
    } else if (pattern[i] == '(') {
      const char kind = next != '?' ? ':' : rest.size() > 1 ? rest[1] : '0';
      if (kind != ':' && kind != '=' && kind != '!') return "(?" + std::string(1, kind);
      if (look_aheads.open(kind != ':')) return "a look-ahead in a look-ahead";
    } else if (pattern[i] == ')') {
      look_aheads.close();
    } else if (pattern[i] == '{') {
      const std::optional<size_t> times = repetitions(rest);
      const size_t end = rest.find('}');
      if (!times || end == rest.npos || repeats_again(rest.substr(end + 1))) return "{";
      states *= *times;
    } else if (pattern[i] == '*' || pattern[i] == '+' || pattern[i] == '?') {
      if (repeats_again(rest)) return std::string(pattern.substr(i, 2));
    }
  }
  return states > kMostStates ? "more than " + std::to_string(kMostStates) + " states" : "";
}

}  // namespace

NamePattern::NamePattern(const std::string& pattern, Scope scope) {
  std::string unread = unread_part(pattern);
  if (unread.empty()) {
    if (read_plain(pattern, scope)) return;
    try {
      // The algorithm of libstdc++ whose time is polynomial, because the pattern is untrusted.
      regex_.emplace(scope == Scope::kEnd ? "(?:.*\\.)?(?:" + pattern + ")" : pattern,
                     std::regex::ECMAScript | std::regex_constants::__polynomial);
      return;
    } catch (const std::regex_error& error) {
      unread = error.what();
    }
  }
  throw ConfigError("this regular expression is not read (" + printable(unread) + ")");
}

// Returns whether the pattern is a name: letters, digits, "_", "-" and dots, perhaps escaped, with
// "^" in front or "$" behind.
bool NamePattern::read_plain(std::string_view pattern, Scope scope) {
  at_start_ = scope == Scope::kWhole || pattern.starts_with('^');
  if (pattern.starts_with('^')) pattern.remove_prefix(1);
  if (pattern.ends_with('$') && !pattern.ends_with("\\$")) pattern.remove_suffix(1);
  std::string plain;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '.') {
      plain += '.';
      ++i;
    } else if (c == '.') {
      plain += kAnyCharacter;
    } else if (is_letter_or_digit(c) || c == '_' || c == '-') {
      plain += c;
    } else {
      return false;
    }
  }
  plain_ = std::move(plain);
  return true;
}

bool NamePattern::matches(std::string_view name) const {
  if (name.size() > kLongestName) return false;
  if (regex_) return std::regex_match(name.begin(), name.end(), *regex_);
  if (name.size() < plain_.size()) return false;
  const size_t before = name.size() - plain_.size();
  if (before > 0 && (at_start_ || name[before - 1] != '.')) return false;
  return std::ranges::equal(name.substr(before), plain_, [](char mine, char wanted) {
    return wanted == kAnyCharacter || mine == wanted;
  });
}

NumbersByPattern::NumbersByPattern(const std::vector<PatternNumber>& list) {
  if (list.size() > kMostPatterns) {
    throw ConfigError("there are more than " + std::to_string(kMostPatterns) + " patterns");
  }
  entries_.reserve(list.size());
  for (const PatternNumber& one : list) {
    try {
      entries_.push_back({one, NamePattern(one.pattern, NamePattern::Scope::kEnd)});
    } catch (const ConfigError& error) {
      throw ConfigError("\"" + printable(one.pattern, 80) + "\": " + error.what());
    }
  }
}

std::optional<double> NumbersByPattern::number_of(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.pattern.matches(name)) return entry.given.number;
  }
  return std::nullopt;
}

std::optional<std::string> NumbersByPattern::pattern_without(
    const std::vector<std::string>& names) const {
  for (const Entry& entry : entries_) {
    const auto matches = [&](const std::string& name) { return entry.pattern.matches(name); };
    if (std::ranges::none_of(names, matches)) return entry.given.pattern;
  }
  return std::nullopt;
}

}  // namespace longshore
