#include "trainer/commands/command_tree.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <span>
#include <sstream>

#include "base/texts.h"
#include "model/families/random_init.h"
#include "offload/forecast/common_machines.h"
#include "trainer/commands/command_list.h"
#include "trainer/setup/run_file_draft.h"

namespace longshore {
namespace {

const char* heading_of(CommandGroup group) {
  switch (group) {
    case CommandGroup::kTrain:
      return "train a model";
    case CommandGroup::kUse:
      return "use a trained model";
    case CommandGroup::kPrepare:
      return "prepare models and data";
    case CommandGroup::kLook:
      return "this program and this machine";
  }
  return "";
}

// Adds the options that every command accepts, before or behind its name.
void add_log_options(CLI::App& app, LogOptions& options) {
  app.fallthrough();
  app.add_flag("-q,--quiet", options.quiet, "print only warnings and errors");
  app.add_flag("-v,--verbose", options.verbose, "print debug messages too");
  app.add_option("--log-level", options.log_level, "level of messages on standard error")
      ->check(CLI::IsMember({"error", "warning", "info", "debug"}))
      ->capture_default_str();
  app.add_option("--color,--colour", options.colour, "colour of messages on standard error")
      ->check(CLI::IsMember({"auto", "never", "always"}))
      ->capture_default_str();
}

// Adds the commands ordered by group, and by name within a group.
void add_commands(CLI::App& app, CommandLine& line) {
  std::vector<const Command*> commands = all_commands();
  std::ranges::stable_sort(commands, {}, &Command::group);
  for (const Command* command : commands) {
    CLI::App* const added = app.add_subcommand(command->name, command->description);
    added->group(heading_of(command->group));
    command->add(CommandArguments(*added), line);
  }
}

std::vector<std::string> names_of_texts(std::span<const NamedText> texts) {
  std::vector<std::string> names;
  for (const NamedText& text : texts) names.emplace_back(text.name);
  return names;
}

// Returns the known values of an option: those of its list, or the names that come with the
// program, where a file may be named too.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string name = option.get_single_name();
  if (name == "machine") return common_machine_names();
  if (name == "recipe") return names_of_texts(common_recipes());
  std::vector<std::string> values;
  if (name == "preset") {
    for (const InitPreset& preset : init_presets()) values.emplace_back(preset.name);
  }
  // CLI11 describes a list of values as "{a,b}", after the type.
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return values;
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string value; std::getline(list, value, ',');) values.push_back(value);
  return values;
}

OptionWords words_of(const CLI::Option& option) {
  OptionWords words;
  words.description = option.get_description();
  words.positional = option.get_positional();
  words.takes_value = option.get_items_expected_max() > 0;  // a flag expects none
  if (words.takes_value) words.values = values_of(option);
  if (words.positional) {
    words.names = {option.get_single_name()};
    return words;
  }
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  return words;
}

CommandHelp words_of(CLI::App& app, const std::string& path) {
  CommandHelp words;
  words.path = path;
  words.description = app.get_description();
  for (const CLI::Option* option : app.get_options()) words.options.push_back(words_of(*option));
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = command->get_name();
    words.commands.push_back(words_of(*command, path.empty() ? name : path + " " + name));
  }
  return words;
}

constexpr const char* kExamples = R"(
examples:
  longshore init-model --preset tiny-llama models/tiny
  longshore plan run.toml
  longshore train run.toml --train.steps=200 --optimizer.lr=1e-4
  longshore launch --nproc 2 -- train run.toml
  longshore generate run.toml --prompt "DOG, n."
  longshore report runs/mine
  longshore export run.toml --to models/tuned
)";

}  // namespace

void add_program(CLI::App& app, CommandLine& line, LogOptions& log) {
  app.description("Longshore: fine-tunes models that are larger than the GPU.");
  app.name("longshore");
  app.require_subcommand(1);
  add_log_options(app, log);  // commands inherit its fallthrough
  add_commands(app, line);
  app.footer(kExamples);  // set last, because commands inherit it
}

bool CommandHelp::takes_keys() const {
  return std::ranges::any_of(options, [](const OptionWords& option) {
    return option.positional && (option.names.front() == "files" || option.names.front() == "file");
  });
}

CommandHelp program_help() {
  CLI::App app;
  CommandLine line;
  LogOptions log;
  add_program(app, line, log);
  return words_of(app, "");
}

}  // namespace longshore
