// Rules across keys of a run file. Pure functions; any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "config/toml_document.h"

namespace longshore {

// KeyPlaces holds the location of each key's value, by full name.
struct KeyPlaces {
  std::map<std::string, SourceLocation> said;  // keys that were set; the others have defaults
  std::set<std::string> wrong;                 // keys with a reported problem; rules skip them
  std::string run_file;                        // the file named when a key is missing
};

// Returns one line for each missing required key and each contradiction between keys.
std::vector<std::string> broken_rules(const RunConfig& config, const KeyPlaces& places,
                                      const LoadOptions& options);

}  // namespace longshore
