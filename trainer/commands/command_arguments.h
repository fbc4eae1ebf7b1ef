// CommandArguments: what a command takes from the command line, named with its help; CLI11 reads
// it. Only the files that parse include CLI11, which costs each that does 8 s of compilation. The
// values outlive the parsing. Main thread.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace longshore {

// One option or argument, for what else is to be said of it.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption& required();
  CommandOption& one_of(const std::vector<std::string>& values);
  CommandOption& excludes(const CommandOption& other);
  CommandOption& needs(const CommandOption& other);
  CommandOption& show_default();  // in the help

 private:
  CLI::Option* option_;
};

// The type of a number, or of each of several.
template <typename Value>
struct NumberIn {
  using Type = Value;
};
template <typename Number>
struct NumberIn<std::vector<Number>> {
  using Type = Number;
};

class CommandArguments {
 public:
  explicit CommandArguments(CLI::App& app) : app_(&app) {}

  // Names without dashes are those of arguments, "-q,--quiet" has two.
  CommandOption add_flag(const std::string& names, bool& value, const std::string& help);
  CommandOption add_option(const std::string& names, std::string& value, const std::string& help);
  CommandOption add_option(const std::string& names, std::vector<std::string>& values,
                           const std::string& help);
  // A number, or several, with bounds that NaN is outside of, and the default in the help.
  template <typename Value, typename Number = typename NumberIn<Value>::Type>
  CommandOption add_number(const std::string& names, Value& value,
                           std::type_identity_t<Number> least, std::type_identity_t<Number> most,
                           const std::string& help);

  CommandArguments add_subcommand(const std::string& name, const std::string& description);
  void require_subcommand();
  void footer(const std::string& text);
  // Done when the command was named and all of its arguments are read.
  void on_parsed(std::function<void()> callback);

 private:
  CLI::App* app_;
};

}  // namespace longshore
