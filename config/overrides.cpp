#include "config/overrides.h"

#include "base/errors.h"

namespace longshore {
namespace {

// Returns true for "--a.b=c" and "--a.b", but not for "--out=a.b".
bool names_a_key(std::string_view argument) {
  if (!argument.starts_with("--")) return false;
  return argument.substr(2, argument.find('=') - 2).find('.') != std::string_view::npos;
}

}  // namespace

SplitArguments split_overrides(const std::vector<std::string>& arguments) {
  SplitArguments split;
  std::vector<std::string> problems;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      split.rest.insert(split.rest.end(), arguments.begin() + static_cast<ptrdiff_t>(i),
                        arguments.end());
      break;
    }
    if (!names_a_key(argument)) {
      split.rest.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    if (equals != std::string::npos) {
      split.overrides.push_back({argument.substr(2, equals - 2), argument.substr(equals + 1)});
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      split.overrides.push_back({argument.substr(2), arguments[++i]});
    } else {
      problems.push_back(argument + ": a value is missing: write " + argument + "=value");
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return split;
}

}  // namespace longshore
