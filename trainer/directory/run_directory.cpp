#include "trainer/directory/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/processor.h"
#include "trainer/checkpoint/json_fields.h"
#include "trainer/checkpoint/run_progress.h"

namespace longshore {
namespace {

constexpr std::array<std::string_view, 4> kStateNames = {"running", "done", "stopped", "failed"};
constexpr Bytes kMaxLockBytes = 4 * kKiB;
constexpr Bytes kMaxConfigBytes = 16 * kMiB;
constexpr JsonLimits kStatusLimits{.max_bytes = 4 * kMiB, .max_depth = 4, .max_values = 1000};
constexpr std::array<std::string_view, 4> kDirectories = {"checkpoints", "best", "tensorboard",
                                                          "frozen"};
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr std::array<std::string_view, 9> kFiles = {"config.toml", "command.txt", "env.json",
                                                    "plan.txt",    "plan.json",   "data.json",
                                                    "run.json",    "state_key",   kTemplateFile};

std::string host_text() {
  const std::string name = host_name();
  return name.empty() ? "unknown" : name;
}

std::string holder_of(const UniqueFd& lock) {
  const std::string text = read_to_end(lock, kMaxLockBytes);
  return text.empty() ? "another process" : text.substr(0, text.find('\n'));
}

// The kernel releases the lock with the open file when the process ends.
UniqueFd take_lock(const std::string& directory) {
  const std::string path = directory + "/lock";
  UniqueFd fd = open_own_file(path, O_RDWR | O_CREAT);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw IoError("lock", path, errno);
    throw ConfigError("run.dir = \"" + directory + "\" is in use by " + holder_of(fd) +
                      "; wait for it, or choose another run.dir");
  }
  if (::ftruncate(fd.get(), 0) != 0) throw IoError("write", path, errno);
  write_all(fd, "process " + std::to_string(::getpid()) + " on " + host_text() + "\n");
  return fd;
}

// Refuses links below the directory, so that a run writes only inside it. hf/ is not checked,
// because an export is written in the directory of a link.
void refuse_links(const std::string& directory) {
  std::vector<std::string> problems;
  for (const std::string_view name : kDirectories) {
    const std::string path = directory + "/" + std::string(name);
    if (!is_symbolic_link(path)) continue;
    problems.push_back(path +
                       ": a symbolic link, through which a run writes nothing; remove it (run.dir "
                       "itself may be a link)");
  }
  if (!problems.empty()) throw ConfigError(problems);
}

// Removes temporary files of a process that was killed while it wrote.
void remove_temporaries(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool ours = std::ranges::any_of(
        kFiles, [&](std::string_view file) { return is_temporary_of(name, file); });
    if (ours) ::unlink(entry.path().c_str());
  }
}

std::optional<Step> step_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !is_whole_number(*found, 0, kMostSteps)) return std::nullopt;
  return Step(found->get<int64_t>());
}

bool of_the_call(const std::string& key) {
  return key.starts_with("run.") && key != "run.seed";
}

}  // namespace

std::string_view name_of(RunStatus::State state) {
  return kStateNames[static_cast<size_t>(state)];
}

RunDirectory RunDirectory::open(const std::string& path) {
  make_directories(path);
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::canonical(path, ignored);
  if (!whole.empty() && !whole.has_relative_path()) {
    throw ConfigError(
        "run.dir = \"" + path +
        "\" is the root of the file system, which a run does not fill with its files; "
        "choose a directory of its own, such as \"runs/first\"");
  }
  refuse_links(path);
  RunDirectory directory(path, take_lock(path));
  remove_temporaries(path);
  return directory;
}

RunDirectory RunDirectory::join(const std::string& path) {
  return {path, UniqueFd()};
}

std::string RunDirectory::file(std::string_view name) const {
  return path_ + "/" + std::string(name);
}

void RunDirectory::write(std::string_view name, std::string_view text) const {
  write_file_durably(file(name), text);
}

std::string RunDirectory::read_config() const {
  try {
    return read_own_file(file("config.toml"), kMaxConfigBytes);
  } catch (const Error&) {
    return "";
  }
}

void RunDirectory::write_command(const std::vector<std::string>& arguments) const {
  std::string text;
  for (const std::string& argument : arguments) {
    if (!text.empty()) text += ' ';
    text += shell_quoted(argument);
  }
  write("command.txt", text + "\n");
}

void RunDirectory::write_chat_template(const std::string& text) const {
  if (text.empty()) {
    ::unlink(file(kTemplateFile).c_str());
  } else {
    write(kTemplateFile, text);
  }
}

std::string RunDirectory::status_text(const RunStatus& status) {
  Json object = Json::object();
  object["status"] = name_of(status.state);
  object["exit_code"] = status.exit_code ? Json(*status.exit_code) : Json();
  object["step"] = status.step.value;
  object["saved_step"] = status.saved_step ? Json(status.saved_step->value) : Json();
  if (status.committed_step) object["committed_step"] = status.committed_step->value;
  object["message"] = status.message;
  object["pid"] = ::getpid();
  object["host"] = host_text();
  object["time"] = unix_seconds();
  return json_text(object, 2) + "\n";
}

void RunDirectory::write_status(const RunStatus& status) const {
  write("run.json", status_text(status));
}

void RunDirectory::note_status(const RunStatus& status) const {
  replace_file(file("run.json"), status_text(status));
}

std::optional<RunStatus> RunDirectory::read_status(const std::string& path) {
  const std::string file = path + "/run.json";
  Json object;
  try {
    if (!std::filesystem::exists(std::filesystem::symlink_status(file))) return std::nullopt;
    object = parse_json(read_own_file(file, kStatusLimits.max_bytes), kStatusLimits, file);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!object.is_object()) return std::nullopt;
  RunStatus status;
  const auto state = object.find("status");
  const auto known = state != object.end() && state->is_string()
                         ? std::ranges::find(kStateNames, state->get<std::string>())
                         : kStateNames.end();
  if (known == kStateNames.end()) return std::nullopt;
  status.state = static_cast<RunStatus::State>(known - kStateNames.begin());
  status.step = step_member(object, "step").value_or(Step(0));
  status.saved_step = step_member(object, "saved_step");
  status.committed_step = step_member(object, "committed_step");
  return status;
}

// ---- The resolved run file ----

std::vector<std::string> config_changes(const std::string& before, const std::string& now) {
  std::map<std::string, std::string> old = config_values(before);
  std::vector<std::string> lines;
  for (const auto& [key, value] : config_values(now)) {
    const auto found = old.find(key);
    const std::string was = found == old.end() ? "(unset)" : found->second;
    if (was != value && !of_the_call(key)) lines.push_back(key + ": " + was + " -> " + value);
    if (found != old.end()) old.erase(found);
  }
  for (const auto& [key, value] : old) {
    if (!of_the_call(key)) lines.push_back(key + ": " + value + " -> (unset)");
  }
  return lines;
}

// The text has a line for each section, followed by one line for each of its keys.
std::map<std::string, std::string> config_values(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[') && line.ends_with(']')) {
      section = line.substr(1, line.size() - 2) + ".";
      continue;
    }
    const size_t equals = line.find(" = ");
    if (line.starts_with('#') || equals == std::string::npos) continue;
    values[section + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return values;
}

}  // namespace longshore
