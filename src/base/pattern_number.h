// PatternNumber: an entry of PEFT's rank_pattern or alpha_pattern, as the run file and
// adapter_config.json have it; NumbersByPattern (name_pattern.h) matches names. Plain value.
#pragma once

#include <string>

namespace longshore {

// The number of modules whose whole name, or whose name behind one of its dots, the pattern
// matches.
struct PatternNumber {
  std::string pattern;  // a regular expression in the syntax of Python's `re`
  double number = 0.0;
  bool operator==(const PatternNumber&) const = default;
};

}  // namespace longshore
