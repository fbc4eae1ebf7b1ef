#include "trainer/commands/command_arguments.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <sstream>
#include <type_traits>

#include "base/texts.h"

namespace longshore {

CommandOption& CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption& CommandOption::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

CommandOption& CommandOption::excludes(const CommandOption& other) {
  option_->excludes(other.option_);
  return *this;
}

CommandOption& CommandOption::needs(const CommandOption& other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption& CommandOption::show_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption& CommandOption::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

CommandOption CommandArguments::add_flag(const std::string& names, bool& value,
                                         const std::string& help) {
  return CommandOption(app_->add_flag(names, value, help));
}

CommandOption CommandArguments::add_option(const std::string& names, std::string& value,
                                           const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
}

CommandOption CommandArguments::add_option(const std::string& names,
                                           std::vector<std::string>& values,
                                           const std::string& help) {
  return CommandOption(app_->add_option(names, values, help));
}

// CLI11's own range check accepts NaN, so the bounds are checked here.
template <typename Value, typename Number>
CommandOption CommandArguments::add_number(const std::string& names, Value& value,
                                           std::type_identity_t<Number> least,
                                           std::type_identity_t<Number> most,
                                           const std::string& help) {
  const auto check = [least, most](const std::string& text) -> std::string {
    Number number{};
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && at == end && number >= least && number <= most) return "";
    std::ostringstream bounds;
    bounds << "must be a" << (std::is_integral_v<Number> ? " whole" : "") << " number from "
           << least << " to " << most << ", not " << printable(text);
    return bounds.str();
  };
  CLI::Option* const option = app_->add_option(names, value, help);
  option->check(CLI::Validator(check, ""))->capture_default_str();
  return CommandOption(option);
}

#define LONGSHORE_ADD_NUMBER(Value)                                            \
  template CommandOption CommandArguments::add_number<Value>(                  \
      const std::string&, Value&, std::type_identity_t<NumberIn<Value>::Type>, \
      std::type_identity_t<NumberIn<Value>::Type>, const std::string&);
LONGSHORE_ADD_NUMBER(int)
LONGSHORE_ADD_NUMBER(int64_t)
LONGSHORE_ADD_NUMBER(uint32_t)
LONGSHORE_ADD_NUMBER(uint64_t)
LONGSHORE_ADD_NUMBER(double)
LONGSHORE_ADD_NUMBER(std::vector<int>)
LONGSHORE_ADD_NUMBER(std::vector<int64_t>)
LONGSHORE_ADD_NUMBER(std::vector<double>)
#undef LONGSHORE_ADD_NUMBER

CommandArguments CommandArguments::add_subcommand(const std::string& name,
                                                  const std::string& description) {
  return CommandArguments(*app_->add_subcommand(name, description));
}

void CommandArguments::require_subcommand() {
  app_->require_subcommand(1);
}

void CommandArguments::footer(const std::string& text) {
  app_->footer(text);
}

void CommandArguments::on_parsed(std::function<void()> callback) {
  app_->callback(std::move(callback));
}

}  // namespace longshore
