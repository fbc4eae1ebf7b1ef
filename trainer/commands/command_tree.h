// CommandTree: all commands with their options, as CLI11 parses them and as plain words, which
// help, shell completion and the manual page are made of. Main thread.
#pragma once

#include <string>
#include <vector>

#include "trainer/commands/command.h"

namespace longshore {

// Options of every command, before or behind its name.
struct LogOptions {
  bool quiet = false, verbose = false;
  std::string log_level = "info", colour = "auto";
};

// Names the program and adds its commands. `line` and `log` outlive the parsing.
void add_program(CLI::App& app, CommandLine& line, LogOptions& log);

extern const char* const kExamples;

struct OptionWords {
  std::vector<std::string> names;  // "-q", "--quiet"; of an argument without dashes: "files"
  std::string description;
  bool takes_value = false;
  bool positional = false;
};

struct CommandHelp {
  std::string path;  // "config dump"; empty: the program
  std::string description;
  std::string group;
  std::vector<OptionWords> options;
  std::vector<CommandHelp> commands;

  // Reads run files, and so takes their keys as options.
  bool takes_keys() const;
};

// The whole program.
CommandHelp program_help();

}  // namespace longshore
