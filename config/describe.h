// Describe: the table of keys as texts for people and editors. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// For `config keys [section]`: every key with type, bounds, default and description; all sections
// where `section` is empty. ConfigError with the nearest name for an unknown section.
std::string describe_keys(std::string_view section);

// For `train --help`: a line per section with the names of its keys.
std::string help_overview();
// For `train --help=section`: every key as an argument. ConfigError as above.
std::string help_text(std::string_view section);

// config/reference.toml: every key with its default and a comment. A run file itself, once the
// keys without a default are filled in.
std::string reference_toml();

// docs/run_file.md.
std::string run_file_page();

// For `config schema`: a JSON Schema (draft 2020-12) of run files, for editors.
std::string json_schema();

}  // namespace longshore
