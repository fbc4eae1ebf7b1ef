#include "trainer/commands/shell_completion.h"

#include <functional>
#include <map>

#include "base/errors.h"
#include "base/texts.h"
#include "config/field_table.h"

namespace longshore {
namespace {

// Removes the characters that end a quoted shell word.
std::string plain(const std::string& text) {
  std::string kept;
  for (const char c : text) {
    if (c == '\'' || c == '\n' || c == '\\') continue;
    kept += c;
  }
  return kept;
}

void for_each_command(const CommandHelp& command,
                      const std::function<void(const CommandHelp&)>& see) {
  see(command);
  for (const CommandHelp& below : command.commands) for_each_command(below, see);
}

std::string last_word(const std::string& path) {
  return path.substr(path.rfind(' ') + 1);
}

void for_each_key(const std::function<void(const Key&)>& see) {
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) see(key);
  }
}

std::vector<std::string> values_of(const Key& key) {
  std::vector<std::string> values = key.choices;
  if (key.type == KeyType::kBool) values = {"true", "false"};
  if (key.type == KeyType::kUnits) values = {"block", "half", "piece", "auto"};
  if (key.allows_auto) values.push_back("auto");
  return values;
}

// Returns a shell `case` over command paths, with one branch for each command that has words.
std::string branches(const CommandHelp& program,
                     const std::function<std::string(const CommandHelp&)>& words) {
  std::string text;
  for_each_command(program, [&](const CommandHelp& command) {
    const std::string found = words(command);
    if (!found.empty()) text += "    '" + command.path + "') echo '" + found + "' ;;\n";
  });
  return text;
}

// Returns the branches of the options that have known values. An option has the same in every
// command.
std::string values_of_options(const CommandHelp& program) {
  std::map<std::string, std::string> values;
  for_each_command(program, [&](const CommandHelp& command) {
    for (const OptionWords& option : command.options) {
      if (option.positional || option.values.empty()) continue;
      for (const std::string& name : option.names) values.emplace(name, joined(option.values, " "));
    }
  });
  std::string text;
  for (const auto& [name, list] : values) text += "    " + name + ") echo '" + list + "' ;;\n";
  return text;
}

// Returns functions that bash and zsh both understand.
std::string tables(const CommandHelp& program) {
  std::string keys, values;
  for_each_key([&](const Key& key) {
    keys += (keys.empty() ? "" : " ") + ("--" + key.full_name() + "=");
    const std::string choices = joined(values_of(key), " ");
    if (!choices.empty()) values += "    --" + key.full_name() + ") echo '" + choices + "' ;;\n";
  });
  values += values_of_options(program);
  const auto commands = [](const CommandHelp& command) {
    std::vector<std::string> names;
    for (const CommandHelp& below : command.commands) names.push_back(last_word(below.path));
    return joined(names, " ");
  };
  const auto options = [&program](const CommandHelp& command) {
    std::vector<std::string> names;
    for (const CommandHelp* each : {&command, &program}) {
      for (const OptionWords& option : each->options) {
        if (!option.positional && (each == &command || option.names.back() != "--help")) {
          names.push_back(option.names.back());
        }
      }
      if (&command == &program) break;
    }
    return joined(names, " ");
  };
  const auto keyed = [](const CommandHelp& command) {
    return std::string(command.takes_keys() ? "yes" : "");
  };
  return "_longshore_commands() {\n  case $1 in\n" + branches(program, commands) +
         "  esac\n}\n_longshore_options() {\n  case $1 in\n" + branches(program, options) +
         "  esac\n}\n_longshore_takes_keys() {\n  case $1 in\n" + branches(program, keyed) +
         "  esac\n}\n_longshore_values() {\n  case $1 in\n" + values +
         "  esac\n}\n_longshore_keys='" + keys + "'\n";
}

// `at` collects the words before the cursor that name a command, such as "config dump".
constexpr const char* kBash = R"sh(_longshore() {
  local at= word i current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ " $(_longshore_commands "$at") " == *" $word "* ]]; then at=${at:+$at }$word; fi
  done
  # "=" is a word of its own here.
  if [[ $current == = ]]; then
    COMPREPLY=($(compgen -W "$(_longshore_values "$before")"))
  elif [[ $before == = ]]; then
    COMPREPLY=($(compgen -W "$(_longshore_values "${COMP_WORDS[COMP_CWORD-2]}")" -- "$current"))
    [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$current"))
  elif [[ $before == -* && $(_longshore_values "$before") ]]; then
    COMPREPLY=($(compgen -W "$(_longshore_values "$before")" -- "$current"))
    [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$current"))
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$(_longshore_options "$at")" -- "$current"))
    if [[ $(_longshore_takes_keys "$at") && $current == --* ]]; then
      COMPREPLY+=($(compgen -W "$_longshore_keys" -- "$current"))
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *= ]]; then compopt -o nospace 2>/dev/null; fi
  else
    word=$(_longshore_commands "$at")
    if [[ $word ]]; then
      COMPREPLY=($(compgen -W "$word" -- "$current"))
    else
      compopt -o filenames 2>/dev/null
      COMPREPLY=($(compgen -f -- "$current"))
    fi
  fi
}
complete -F _longshore longshore
)sh";

constexpr const char* kZsh = R"sh(_longshore() {
  local at= word found
  for word in ${words[2,CURRENT-1]}; do
    if [[ " $(_longshore_commands "$at") " == *" $word "* ]]; then at=${at:+$at }$word; fi
  done
  word=${words[CURRENT]}
  if [[ $word == --*=* ]]; then
    found=$(_longshore_values "${word%%=*}")
    compset -P '*='
    if [[ -n $found ]]; then compadd -- ${=found}; else _files; fi
  elif [[ ${words[CURRENT-1]} == -* && -n $(_longshore_values "${words[CURRENT-1]}") ]]; then
    found=$(_longshore_values "${words[CURRENT-1]}")
    compadd -- ${=found}
    _files
  elif [[ $word == -* ]]; then
    found=$(_longshore_options "$at")
    compadd -- ${=found}
    if [[ -n $(_longshore_takes_keys "$at") ]]; then compadd -S '' -- ${=_longshore_keys}; fi
  else
    found=$(_longshore_commands "$at")
    if [[ -n $found ]]; then compadd -- ${=found}; else _files; fi
  fi
}
if [[ $funcstack[1] == _longshore ]]; then _longshore "$@"; else compdef _longshore longshore; fi
)sh";

std::string fish_option(const std::string& condition, const OptionWords& option) {
  std::string line = "complete -c longshore -n '" + condition + "'";
  for (const std::string& name : option.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (option.takes_value) line += " -r";
  if (!option.values.empty()) line += " -a '" + joined(option.values, " ") + "'";
  return line + " -d '" + plain(option.description) + "'\n";
}

std::string fish_script(const CommandHelp& program) {
  std::string text;
  std::string with_keys;  // one line for each command that takes keys
  for_each_command(program, [&](const CommandHelp& command) {
    std::string condition;
    for (size_t at = 0; at < command.path.size();) {
      const size_t blank = std::min(command.path.find(' ', at), command.path.size());
      condition += (condition.empty() ? "" : "; and ") +
                   ("__fish_seen_subcommand_from " + command.path.substr(at, blank - at));
      at = blank + 1;
    }
    std::string below;
    for (const CommandHelp& each : command.commands) below += " " + last_word(each.path);
    for (const CommandHelp& each : command.commands) {
      const std::string here = condition.empty()
                                   ? "__fish_use_subcommand"
                                   : condition + "; and not __fish_seen_subcommand_from" + below;
      text += "complete -c longshore -f -n '" + here + "' -a " + last_word(each.path) + " -d '" +
              plain(each.description) + "'\n";
    }
    for (const OptionWords& option : command.options) {
      if (!option.positional) text += fish_option(condition.empty() ? "true" : condition, option);
    }
    if (command.takes_keys()) with_keys += "  " + condition + "; and return 0\n";
  });
  text = "function __longshore_takes_keys\n" + with_keys + "  return 1\nend\n" + text;
  for_each_key([&](const Key& key) {
    text += "complete -c longshore -n __longshore_takes_keys -l " + key.full_name() + " -x -d '" +
            plain(key.description) + "'";
    const std::string choices = joined(values_of(key), " ");
    text += (choices.empty() ? "" : " -a '" + choices + "'") + "\n";
  });
  return text;
}

}  // namespace

std::string completion_script(std::string_view shell, const CommandHelp& program) {
  if (shell == "bash") {
    return "# bash: source <(longshore config completion bash), or put it in "
           "~/.local/share/bash-completion/completions/longshore\n" +
           tables(program) + kBash;
  }
  if (shell == "zsh") {
    return "#compdef longshore\n# zsh: put it as _longshore into a folder of $fpath\n" +
           tables(program) + kZsh;
  }
  if (shell == "fish") {
    return "# fish: put it in ~/.config/fish/completions/longshore.fish\n" + fish_script(program);
  }
  throw ConfigError("config completion: bash, zsh or fish, not " + std::string(shell));
}

}  // namespace longshore
