// Command: what one file of trainer/commands adds to the command line: options, their parser, and
// what the command does. The build lists every `*_command.cpp` (trainer/CMakeLists.txt), and
// command_line.cpp asks each; a new command is a file of its own and its test. Main thread.
//
// `foo_command.cpp` defines kFooCommand. A command returns the process's exit code and throws Error
// for what the user must know. Data goes to standard output, messages to standard error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/overrides.h"
#include "trainer/commands/command_arguments.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

// A process's arguments, and what is to be done. Outlives every command's options.
struct CommandLine {
  std::vector<std::string> arguments;     // as they were given
  std::vector<std::string> rank_command;  // of `launch`: what follows "--"
  std::vector<Override> overrides;        // --section.key=value
  std::function<int()> action;            // of the command that was named
};

// Headings of the help, in their order.
enum class CommandGroup : uint8_t { kTrain, kUse, kPrepare, kLook };

// Who runs a command that all ranks of a launcher were given.
enum class CommandRanks : uint8_t { kFirst, kFirstOfNode, kAll };

struct Command {
  CommandGroup group = CommandGroup::kLook;
  const char* name = "";
  const char* description = "";
  void (*add)(CommandArguments command, CommandLine& line) = nullptr;
  CommandRanks ranks = CommandRanks::kFirst;
};

// More than any model or vocabulary has.
inline constexpr int64_t kMostTokens = int64_t{1} << 24;

struct NoOptions {};

// The command's options, kept until `run` has had them.
template <typename Options>
Options& call_with_options(CommandArguments command, CommandLine& line,
                           int (*run)(const Options&)) {
  const auto options = std::make_shared<Options>();
  command.on_parsed(
      [&line, options, run] { line.action = [options, run] { return run(*options); }; });
  return *options;
}

// Of commands that read run files.
void add_run_files(CommandArguments command, const CommandLine& line, RunArguments& run);

// `--from`: which weights.
void add_source(CommandArguments command, std::string& source);

}  // namespace longshore
