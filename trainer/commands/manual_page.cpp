#include "trainer/commands/manual_page.h"

#include <array>
#include <utility>

#include "config/field_table.h"

namespace longshore {
namespace {

// Escapes text for roff: hyphens stay copyable, and no line starts with a roff control character.
std::string roff(const std::string& text) {
  std::string page;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) page += "\\&";
    if (c == '-') {
      page += "\\-";
    } else if (c == '\\') {
      page += "\\e";
    } else {
      page += c;
    }
    begins = c == '\n';
  }
  return page;
}

std::string entry(const std::string& term, const std::string& text) {
  return ".TP\n\\fB" + roff(term) + "\\fR\n" + roff(text) + "\n";
}

std::string term_of(const OptionWords& option) {
  std::string term;
  for (const std::string& name : option.names) term += (term.empty() ? "" : ", ") + name;
  return term + (option.takes_value && !option.positional ? " VALUE" : "");
}

std::string command_text(const CommandHelp& command) {
  std::string text;
  if (command.commands.empty()) {
    std::string arguments;
    for (const OptionWords& option : command.options) {
      if (option.positional) arguments += " " + option.names.front();
    }
    text = ".SS longshore " + roff(command.path + arguments) + "\n" + roff(command.description) +
           (command.takes_keys() ? "; takes keys of the run file as options" : "") + "\n";
    for (const OptionWords& option : command.options) {
      if (option.names.back() != "--help") text += entry(term_of(option), option.description);
    }
  }
  for (const CommandHelp& below : command.commands) text += command_text(below);
  return text;
}

std::string key_text(const Key& key) {
  std::string text = key.description + " (" + key.type_text();
  if (!key.bounds.text().empty()) text += ", " + key.bounds.text();
  text += key.required() ? "; needed" : "; default " + toml_text(key, key.default_value());
  return entry(key.full_name(), text + ")");
}

constexpr std::array<std::pair<const char*, const char*>, 12> kExitCodes = {{
    {"0", "done"},
    {"1", "other failure"},
    {"2", "usage or configuration"},
    {"3", "the plan does not fit"},
    {"4", "memory ran out at run time"},
    {"5", "data error"},
    {"6", "checkpoint error"},
    {"7", "stopped on non-finite loss or gradients"},
    {"8", "distributed failure"},
    {"9", "ended at once by a second Ctrl-C; nothing more was saved"},
    {"10", "the results of a GPU differ from the CPU"},
    {"128 + N", "stopped by signal N after a successful save"},
}};

constexpr std::array<std::pair<const char*, const char*>, 3> kSignals = {{
    {"SIGTERM, SIGINT, SIGHUP, SIGUSR1", "finish the step, save everything, end with 128 + N"},
    {"a second SIGINT", "end at once with 9"},
    {"SIGUSR2, or a file named save in run.dir", "save and continue"},
}};

}  // namespace

std::string manual_page(const CommandHelp& program) {
  std::string text =
      ".TH LONGSHORE 1\n.SH NAME\nlongshore \\- fine\\-tunes models that are larger than the GPU\n"
      ".SH SYNOPSIS\n.B longshore\nCOMMAND [OPTIONS] [RUN.TOML ...] [\\-\\-section.key=value ...]\n"
      ".SH DESCRIPTION\n" +
      roff(program.description) +
      "\nData goes to standard output, messages to standard error.\n.SH OPTIONS\n";
  for (const OptionWords& option : program.options)
    text += entry(term_of(option), option.description);
  text += ".SH COMMANDS\n";
  for (const CommandHelp& command : program.commands) text += command_text(command);
  text += ".SH RUN FILE\nKeys, each also an option \\-\\-section.key=value, the value in TOML.\n";
  for (const Section& section : run_file_sections()) {
    text += ".SS [" + section.name + "]\n" + roff(section.description) + "\n";
    for (const Key& key : section.keys) text += key_text(key);
  }
  text += ".SH SIGNALS\n";
  for (const auto& [signal, meaning] : kSignals) text += entry(signal, meaning);
  text += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExitCodes) text += entry(code, meaning);
  return text + ".SH EXAMPLES\n.nf\n" + roff(kExamples) + ".fi\n";
}

}  // namespace longshore
