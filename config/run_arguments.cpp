#include "config/run_arguments.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

// Returns true for "--a.b=c" and "--a.b", but not for "--out=a.b".
bool names_a_key(std::string_view argument) {
  if (!argument.starts_with("--")) return false;
  return argument.substr(2, argument.find('=') - 2).find('.') != std::string_view::npos;
}

namespace fs = std::filesystem;

constexpr size_t kMostShown = 4096;  // bytes of a path

bool ends_with_one_of(const std::string& path, std::initializer_list<const char*> endings) {
  return std::ranges::any_of(endings, [&path](const char* end) { return path.ends_with(end); });
}

std::string why_no_directory(const std::string& path) {
  std::error_code ignored;
  const std::string shown = printable(path, kMostShown);
  if (fs::exists(path + "/config.json", ignored)) {
    return shown + " is the directory of a model, not a run file; `longshore init --model " +
           shell_quoted(path) + " --data FILE` writes one, and --from " + shown +
           " gives a run's commands other weights";
  }
  return shown + " is a directory without config.toml, so no run has begun in it; name a run file";
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

std::string run_file_at(const std::string& given) {
  std::error_code ignored;
  const std::string recorded = given + "/config.toml";
  return fs::exists(recorded, ignored) ? recorded : given;
}

std::string why_no_run_file(const std::string& path) {
  std::error_code ignored;
  const std::string shown = printable(path, kMostShown);
  if (fs::is_directory(path, ignored)) return why_no_directory(path);
  if (!fs::exists(path, ignored)) {
    if (path == kUsualRunFile) {
      return std::string("no run file is named, and there is no ") + kUsualRunFile +
             " here; `longshore init --model DIRECTORY --data FILE` writes it";
    }
    const size_t dot = path.find('.');
    return dot < path.find('=') && path.find('=') != std::string::npos
               ? "no such file: " + shown + "; a key of the run file is given as --" + shown
               : "";
  }
  if (ends_with_one_of(path, {".yaml", ".yml"})) {
    return shown + " is no run file (TOML); `longshore init --from " + shell_quoted(path) +
           "` converts the file of another trainer";
  }
  if (ends_with_one_of(path, {".jsonl", ".json", ".parquet", ".csv", ".txt", ".gz", ".zst"})) {
    return shown +
           " is no run file (TOML); data is named in the run file or by --data.train=" + shown +
           ", and `longshore init --model DIRECTORY --data " + shell_quoted(path) + "` writes one";
  }
  return "";
}

}  // namespace longshore
