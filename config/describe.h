// Texts for people and editors from the table of keys. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// Returns the output of `config keys [section]`: every key with type, bounds, default and
// description. An empty `section` means all. ConfigError for an unknown section.
std::string describe_keys(std::string_view section);

// Returns the overview of `train --help`: a line per section with its keys.
std::string help_overview();
// Returns the output of `train --help=section`. ConfigError for an unknown section.
std::string help_text(std::string_view section);

// Returns config/reference.toml: every key with its default and a comment. It is a valid run file
// once the keys without default are set.
std::string reference_toml();

// Returns docs/run_file.md.
std::string run_file_page();

// Returns the JSON Schema (draft 2020-12) of run files for `config schema`.
std::string json_schema();

}  // namespace longshore
