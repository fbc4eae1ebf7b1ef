// RunRules: what the keys of a run file must satisfy together. Pure functions, any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "config/toml_document.h"

namespace longshore {

// Where the keys got their values, by full name.
struct KeyPlaces {
  std::map<std::string, SourceLocation> said;  // keys that were set; the others have their defaults
  std::set<std::string> wrong;  // keys with a reported problem: no rule looks at them
  std::string run_file;         // what a missing key is missing from
};

// Keys without a default that nobody set, and keys that contradict each other; one line each.
std::vector<std::string> broken_rules(const RunConfig& config, const KeyPlaces& places,
                                      const LoadOptions& options);

}  // namespace longshore
