#include "trainer/run/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr std::array<std::string_view, 4> kStateNames = {"running", "done", "stopped", "failed"};
constexpr Bytes kMaxLockBytes = 4 * kKiB;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string holder_of(const std::string& lock_path) {
  const std::string text = read_whole_file(lock_path, kMaxLockBytes);
  return text.empty() ? "another process" : text.substr(0, text.find('\n'));
}

// The lock belongs to the open file: it is free again when the process is gone.
UniqueFd take_lock(const std::string& directory) {
  const std::string path = directory + "/lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), path);
  if (!fd.valid()) throw IoError("open", path, errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw IoError("lock", path, errno);
    throw ConfigError("run.dir = \"" + directory + "\" is in use by " + holder_of(path) +
                      "; wait for it, or choose another run.dir");
  }
  if (::ftruncate(fd.get(), 0) != 0) throw IoError("write", path, errno);
  write_all(fd, "process " + std::to_string(::getpid()) + " on " + host_name() + "\n");
  return fd;
}

double now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string json_text(const Json& value) {
  return value.dump(2, ' ', false, nlohmann::detail::error_handler_t::replace) + "\n";
}

}  // namespace

std::string_view name_of(RunStatus::State state) {
  return kStateNames[static_cast<size_t>(state)];
}

RunDirectory RunDirectory::open(const std::string& path) {
  make_directories(path);
  return {path, take_lock(path)};
}

RunDirectory RunDirectory::join(const std::string& path) {
  return {path, UniqueFd()};
}

std::string RunDirectory::file(std::string_view name) const {
  return path_ + "/" + std::string(name);
}

void RunDirectory::write_config(const std::string& toml) const {
  write_file_durably(file("config.toml"), toml);
}

void RunDirectory::write_command(const std::vector<std::string>& arguments) const {
  std::string text;
  for (const std::string& argument : arguments) {
    if (!text.empty()) text += ' ';
    text += shell_quoted(argument);
  }
  write_file_durably(file("command.txt"), text + "\n");
}

void RunDirectory::write_environment(const Json& environment) const {
  write_file_durably(file("env.json"), json_text(environment));
}

void RunDirectory::write_plan(const std::string& text) const {
  write_file_durably(file("plan.txt"), text);
}

void RunDirectory::write_status(const RunStatus& status) const {
  Json object = Json::object();
  object["status"] = name_of(status.state);
  object["exit_code"] = status.exit_code ? Json(*status.exit_code) : Json();
  object["step"] = status.step.value;
  object["saved_step"] = status.saved_step ? Json(status.saved_step->value) : Json();
  object["message"] = status.message;
  object["pid"] = ::getpid();
  object["host"] = host_name();
  object["time"] = now_seconds();
  write_file_durably(file("run.json"), json_text(object));
}

std::string shell_quoted(const std::string& argument) {
  constexpr std::string_view kPlain = "-_./=,:+@%";
  const bool plain = !argument.empty() && std::ranges::all_of(argument, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || kPlain.find(c) != std::string_view::npos;
  });
  if (plain) return argument;
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace longshore
