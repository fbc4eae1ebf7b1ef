// All commands with their options, in CLI11's form for parsing and as plain text for
// shell completion. Main thread.
#pragma once

#include <string>
#include <vector>

#include "trainer/commands/command.h"

namespace longshore {

// Options that every command accepts, before or after its name.
struct LogOptions {
  bool quiet = false, verbose = false;
  std::string log_level = "info", colour = "auto";
};

// Names the program and adds its commands. `line` and `log` must outlive the parsing.
void add_program(CLI::App& app, CommandLine& line, LogOptions& log);

struct OptionWords {
  std::vector<std::string> names;  // "-q", "--quiet"; a positional argument has no dashes: "files"
  std::string description;
  std::vector<std::string> values;  // proposed by completion; others may be allowed
  bool takes_value = false;
  bool positional = false;
};

struct CommandHelp {
  std::string path;  // "config dump"; empty for the program itself
  std::string description;
  std::vector<OptionWords> options;
  std::vector<CommandHelp> commands;

  // Returns whether the command reads run files and therefore accepts their keys as options.
  bool takes_keys() const;
};

// Returns the help of the whole program.
CommandHelp program_help();

}  // namespace longshore
