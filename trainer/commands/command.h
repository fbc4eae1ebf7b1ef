// Command: one entry of the command line, in a file of trainer/commands: its options, their parser
// and its action. The build lists every `*_command.cpp` (trainer/CMakeLists.txt) for
// command_line.cpp, so a new command is only its own file and a test. `foo_command.cpp` defines
// kFooCommand. A command returns the exit code and throws Error for failures that the user must
// see. Data goes to standard output, messages to standard error. Main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/run_arguments.h"
#include "trainer/commands/command_arguments.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

// The ranks that run a command when a launcher starts it on all ranks.
enum class CommandRanks : uint8_t { kFirst, kFirstOfNode, kAll };

// CommandLine holds the arguments and the chosen action. It outlives every command's options.
struct CommandLine {
  std::vector<std::string> arguments;         // in their original form
  std::vector<std::string> rank_command;      // `launch` only: the arguments after "--"
  std::vector<Override> overrides;            // --section.key=value
  std::function<int()> action;                // the named command's action
  bool takes_keys = false;                    // the named command uses `overrides`
  CommandRanks ranks = CommandRanks::kFirst;  // the ranks that run the action
};

// Headings of the help text, in its order.
enum class CommandGroup : uint8_t { kTrain, kUse, kPrepare, kLook };

struct Command {
  CommandGroup group = CommandGroup::kLook;
  const char* name = "";
  const char* description = "";
  void (*add)(CommandArguments command, CommandLine& line) = nullptr;
};

// An upper bound for option values, above every model's length and vocabulary.
inline constexpr int64_t kMostTokens = int64_t{1} << 24;

// Whether a command's options include keys of the run file.
template <typename Options>
constexpr bool kTakesKeys = requires(Options& options) { options.run.overrides; } ||
                            requires(Options& options) { options.overrides; };

// Returns the command's options, which live until `run` has returned. `ranks` run the command.
template <typename Options>
Options& call_with_options(CommandArguments command, CommandLine& line, int (*run)(const Options&),
                           CommandRanks ranks = CommandRanks::kFirst) {
  const auto options = std::make_shared<Options>();
  command.on_parsed([&line, options, run, ranks] {
    line.action = [options, run] { return run(*options); };
    line.ranks = ranks;
    line.takes_keys = kTakesKeys<Options>;
  });
  return *options;
}

// Adds the options of commands that read run files.
void add_run_files(CommandArguments command, const CommandLine& line, RunArguments& run);

// Adds `--from`, which selects the weights.
void add_source(CommandArguments command, std::string& source);

// Adds `--any-base`, for commands that take the adapter of adapter.path or of --from.
void add_any_base(CommandArguments command, RunArguments& run);

// Print the result of `--json` on standard output, over several lines or on one.
void print_json(const Json& value);
void print_json_line(const Json& value);

}  // namespace longshore
