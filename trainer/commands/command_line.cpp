#include "trainer/commands/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <iterator>
#include <new>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "base/texts.h"
#include "comm/ranks/rank_info.h"
#include "config/describe.h"
#include "config/run_config.h"
#include "trainer/commands/command.h"
#include "trainer/commands/command_list.h"
#include "trainer/commands/command_tree.h"

namespace longshore {
namespace {

// `--help=offload` prints the help of one section of the run file.
constexpr std::string_view kSectionHelp = "--help=";

// Removes the arguments behind "--" of `launch` and returns them: each rank's command line.
std::vector<std::string> take_rank_command(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "launch") return {};
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (dashes == arguments.end()) {
    const auto is_command = [](const std::string& word) {
      return std::ranges::any_of(all_commands(),
                                 [&word](const Command* command) { return command->name == word; });
    };
    const auto command = std::find_if(arguments.begin() + 1, arguments.end(), is_command);
    if (command == arguments.end()) return {};
    throw ConfigError("launch: put -- before the command of the ranks: launch --nproc 2 -- " +
                      *command + " run.toml");
  }
  std::vector<std::string> command(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  return command;
}

void apply_log_options(const LogOptions& options) {
  LogLevel level = parse_log_level(options.log_level).value_or(LogLevel::kInfo);
  if (options.quiet) level = std::min(level, LogLevel::kWarning);
  if (options.verbose) level = LogLevel::kDebug;
  set_log_level(level);
  set_log_colour(options.colour == "never"    ? LogColour::kNever
                 : options.colour == "always" ? LogColour::kAlways
                                              : LogColour::kAuto);
}

// Rewrites "help train" as "train --help", and an empty command line as "--help".
std::vector<std::string> spelled_out(std::vector<std::string> arguments) {
  if (arguments.empty()) return {"--help"};
  if (arguments.front() == "--version" || arguments.front() == "-V") arguments.front() = "version";
  if (arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

std::vector<std::string> split_words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

// Returns the positions of the words that may name a command: neither options nor values of the log
// options, which may come before the command.
std::vector<size_t> command_places(const std::vector<std::string>& words) {
  std::vector<size_t> places;
  bool value = false;  // `word` is the value of the option before it
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool is_value =
        std::exchange(value, word == "--log-level" || word == "--color" || word == "--colour");
    if (!is_value && !word.starts_with('-')) places.push_back(i);
  }
  return places;
}

// Replaces an earlier name of a command by today's words. Returns its entry, or null if the command
// line has no earlier name.
const OldCommand* replace_old_command(std::vector<std::string>& words) {
  const std::vector<size_t> places = command_places(words);
  for (const OldCommand& old : kOldCommands) {
    const std::vector<std::string> name = split_words(old.name);
    const auto is_at = [&words](const std::string& word, size_t place) {
      return word == words[place];
    };
    if (name.size() > places.size() ||
        !std::equal(name.begin(), name.end(), places.begin(), is_at)) {
      continue;
    }
    for (size_t i = name.size(); i-- > 0;) {
      words.erase(words.begin() + static_cast<ptrdiff_t>(places[i]));
    }
    const std::vector<std::string> today = split_words(old.words);
    words.insert(words.begin() + static_cast<ptrdiff_t>(places[0]), today.begin(), today.end());
    return &old;
  }
  return nullptr;
}

// Returns true if the letters of `name` are in `word`, in order, from the first on: "ls" of "list".
bool abbreviates(const std::string& name, const std::string& word) {
  if (name.empty() || word.empty() || name[0] != word[0]) return false;
  size_t found = 0;
  for (const char letter : word) found += found < name.size() && letter == name[found] ? 1 : 0;
  return found == name.size();
}

// Returns the nearest command of `names`, or what replaced it if an earlier name is nearer.
std::string meant_command(const std::string& word, std::vector<std::string> names, bool top_level) {
  if (top_level) {
    const auto other = std::ranges::find(kOtherPrograms, word, &OldCommand::name);
    if (other != kOtherPrograms.end()) return std::string(other->words);
    for (const OldCommand& old : kOldCommands) names.emplace_back(old.name);
  }
  std::string nearest = nearest_name(word, names);
  if (nearest.empty()) {
    const auto shorter = std::ranges::find_if(
        names, [&word](const std::string& name) { return abbreviates(name, word); });
    if (shorter != names.end()) nearest = *shorter;
  }
  const auto old = std::ranges::find(kOldCommands, nearest, &OldCommand::name);
  return old == kOldCommands.end() ? nearest : std::string(old->words);
}

// Throws for an unknown command and suggests the nearest name.
void check_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string path = "longshore";
  for (const size_t place : command_places(words)) {
    const std::string& word = words[place];
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
      if (names.back() == word) next = command;
    }
    if (names.empty()) return;  // the other words are arguments
    if (next == nullptr) {
      const std::string meant = meant_command(word, names, at == &app);
      throw ConfigError("unknown command '" + printable(word) + "'" +
                        (meant.empty() ? "" : ", did you mean '" + meant + "'?") + " (" + path +
                        " --help lists them)");
    }
    path += " " + word;
    at = next;
  }
}

// MeantOption: another program's name of an option or of a key of the run file.
struct MeantOption {
  std::string_view name, meant;
};
constexpr std::array<MeantOption, 12> kMeantOptions = {{
    {"model", "--model.path=DIRECTORY"},
    {"data", "--data.train=FILE"},
    {"device", "--device.kind=VALUE"},
    {"batch_size", "--train.sequences_per_step=VALUE"},
    {"batch-size", "--train.sequences_per_step=VALUE"},
    {"output", "--to"},
    {"out", "--to"},
    {"o", "--to"},
    {"p", "--prompt"},
    {"max_tokens", "--max-new-tokens"},
    {"max-tokens", "--max-new-tokens"},
    {"checkpoint", "--from"},
}};

// Returns advice for an option that the command does not have, "" if there is none.
std::string advice_for(const CLI::App& command, const std::string& name) {
  if (name == "config" || name == "c") return ": the run file is named without an option";
  const auto has = [&command](const std::string& option) {
    return command.get_option_no_throw(option) != nullptr;
  };
  const auto other = std::ranges::find(kMeantOptions, name, &MeantOption::name);
  if (other != kMeantOptions.end()) {
    const std::string meant(other->meant);
    if (meant.find('.') != std::string::npos || has(meant)) return ", did you mean " + meant + "?";
  }
  std::string dashed = name;
  std::ranges::replace(dashed, '_', '-');
  if (has("--" + dashed)) return ", did you mean --" + dashed + "?";
  return advice_for_option(name);
}

// Returns advice for the first option of `problem` that any is known for.
std::string advice_for_words(const CLI::App& app, const std::vector<std::string>& words,
                             const std::string& problem) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  for (const std::string& word : words) {
    if (!word.starts_with('-')) continue;
    const std::string option = word.substr(0, word.find('='));
    const size_t name = option.find_first_not_of('-');
    if (name == std::string::npos || problem.find(option) == std::string::npos) continue;
    const std::string advice = advice_for(*command, option.substr(name));
    if (!advice.empty()) return advice;
  }
  return "";
}

// Returns whether this rank runs the command: all ranks, rank 0 only, or, for tokenising, the first
// rank of each node.
bool is_for_this_rank(CommandRanks runs) {
  if (runs == CommandRanks::kAll) return true;
  const RankInfo ranks = discover_ranks();
  if (ranks.rank == 0) return true;
  return runs == CommandRanks::kFirstOfNode && ranks.local_size > 0 && ranks.local_rank == 0;
}

// A command that reads no run file would ignore them.
void refuse_keys(const std::vector<Override>& keys) {
  std::vector<std::string> problems;
  for (const Override& key : keys) {
    problems.push_back("--" + printable(key.key) +
                       ": this command reads no run file, so it takes no keys of one");
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

int parse_and_run(std::vector<std::string> arguments) {
  CommandLine line;
  line.rank_command = take_rank_command(arguments);
  line.arguments = spelled_out(std::move(arguments));
  for (const std::string& argument : line.arguments) {
    if (!argument.starts_with(kSectionHelp)) continue;
    print_out("%s", help_text(argument.substr(kSectionHelp.size())).c_str());
    return 0;
  }
  SplitArguments split = split_overrides(line.arguments);
  line.overrides = split.overrides;
  CLI::App app;
  LogOptions log;
  add_program(app, line, log);
  const OldCommand* const old = replace_old_command(split.rest);
  check_command(app, split.rest);
  const auto apply_log = [&log, old] {
    apply_log_options(log);
    if (old == nullptr) return;
    log_info("longshore " + std::string(old->name) + " is now longshore " +
             std::string(old->words) + "; the old name works for one more release");
  };
  try {
    std::vector<std::string> reversed(split.rest.rbegin(), split.rest.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    apply_log();
    if (error.get_exit_code() != 0) {
      const bool unknown = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
      throw ConfigError(std::string(error.what()) +
                        (unknown ? advice_for_words(app, split.rest, error.what()) : "") +
                        " (--help explains)");
    }
    std::ostringstream help, none;
    app.exit(error, help, none);
    print_raw(help.str());
    flush_output();
    return 0;
  }
  if (!line.takes_keys) refuse_keys(line.overrides);
  if (!is_for_this_rank(line.ranks)) return 0;
  apply_log();
  const int exit_code = line.action();
  flush_output();
  return exit_code;
}

}  // namespace

int run_command_line(const std::vector<std::string>& arguments) {
  try {
    return parse_and_run(arguments);
  } catch (const ConfigError& error) {
    for (const std::string& problem : error.problems()) log_error(problem);
    return static_cast<int>(error.exit_code());
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    log_error(
        "host memory ran out; lower offload.host_memory or the sizes that the plan lists under "
        "host");
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const std::filesystem::filesystem_error& error) {
    // The library's own text names its function and puts the paths into brackets.
    log_error(error.path1().string() +
              (error.path2().empty() ? "" : ", " + error.path2().string()) + ": " +
              error.code().message());
    return static_cast<int>(ExitCode::kFailure);
  } catch (const std::exception& error) {
    log_error(error.what());
    return static_cast<int>(ExitCode::kFailure);
  }
}

}  // namespace longshore
