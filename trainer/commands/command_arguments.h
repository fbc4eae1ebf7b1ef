// CommandArguments: declares a command's options and arguments with their help text; CLI11 parses
// them. Only the files that parse include CLI11, because it adds 8 s to the compilation of each.
// The values must outlive the parsing. Main thread.
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

// CommandOption adds constraints to one option or argument.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption& required();
  CommandOption& one_of(const std::vector<std::string>& values);
  CommandOption& excludes(const CommandOption& other);
  CommandOption& needs(const CommandOption& other);
  CommandOption& show_default();  // prints the default value in the help text
  // A list takes one value for each time that the option is given. The value stays as it is: other
  // lists take the words behind it, too, and split a value in brackets at commas.
  CommandOption& one_value_each();

 private:
  CLI::Option* option_;
};

// The number type of a number or of a vector of numbers.
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

  // A name without dashes is a positional argument; "-q,--quiet" gives an option two names.
  CommandOption add_flag(const std::string& names, bool& value, const std::string& help);
  CommandOption add_option(const std::string& names, std::string& value, const std::string& help);
  CommandOption add_option(const std::string& names, std::vector<std::string>& values,
                           const std::string& help);
  // Adds a number, or a vector of numbers, with bounds that refuse NaN and a default in the help.
  template <typename Value, typename Number = typename NumberIn<Value>::Type>
  CommandOption add_number(const std::string& names, Value& value,
                           std::type_identity_t<Number> least, std::type_identity_t<Number> most,
                           const std::string& help);

  CommandArguments add_subcommand(const std::string& name, const std::string& description);
  void require_subcommand();
  void footer(const std::string& text);
  // Sets a function that runs after the command was named and all of its arguments were parsed.
  void on_parsed(std::function<void()> callback);

 private:
  CLI::App* app_;
};

}  // namespace longshore
