#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/errors.h"
#include "base/file.h"

extern char** environ;

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMostOutput = 8192;
constexpr size_t kPipeBytes = size_t{64} << 10;  // what Linux keeps in one: one read takes all
// A program may close its output and go on, or leave it open to one of its own: only its end
// counts, which is looked for this often.
constexpr milliseconds kLook{20};

// Reads what is there, once: whoever writes without end keeps nobody here. False: there will be no
// more.
bool read_some(int fd, std::string& output) {
  std::array<char, kPipeBytes> part;
  ssize_t bytes = 0;
  do {
    bytes = ::read(fd, part.data(), part.size());
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) return errno == EAGAIN;
  output.append(part.data(), static_cast<size_t>(bytes));
  if (output.size() > kMostOutput) output.erase(0, output.size() - kMostOutput);
  return bytes > 0;
}

// Whether the program ended; waits for it without WNOHANG.
bool has_ended(pid_t child, int flags, int& status) {
  for (;;) {
    const pid_t found = ::waitpid(child, &status, flags);
    if (found < 0 && errno == EINTR) continue;
    return found != 0;
  }
}

// Returns its status as waitpid gives it.
int watch(pid_t child, int fd, std::optional<Clock::time_point> deadline, ChildEnd& end) {
  int status = 0;
  pollfd reading{.fd = fd, .events = POLLIN, .revents = 0};
  while (!has_ended(child, WNOHANG, status)) {
    if (deadline && Clock::now() >= *deadline) {
      end.in_time = false;
      ::kill(child, SIGKILL);
      has_ended(child, 0, status);
      break;
    }
    // HOST WAIT: the caller goes on with what the program found.
    if (::poll(&reading, 1, static_cast<int>(kLook.count())) <= 0) continue;
    if (!read_some(fd, end.output)) reading.fd = -1;
  }
  read_some(fd, end.output);
  return status;
}

}  // namespace

std::string ChildEnd::text() const {
  if (!not_started.empty()) return "it could not be started: " + not_started;
  if (!in_time) return "it did not end in time";
  if (signal != 0) return std::string("it crashed: ") + ::strsignal(signal);
  return "it ended with exit code " + std::to_string(exit_code);
}

ChildEnd run_child(std::vector<std::string> arguments, std::optional<milliseconds> limit) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw IoError(std::string("a pipe for ") + arguments.front() + ": " + std::strerror(errno));
  }
  const UniqueFd reading(ends[0], "pipe");
  UniqueFd writing(ends[1], "pipe");
  ::fcntl(reading.get(), F_SETFL, O_NONBLOCK);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDERR_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, argv.front(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  writing.reset();
  ChildEnd end;
  if (failed != 0) {
    end.not_started = std::strerror(failed);
    return end;
  }
  std::optional<Clock::time_point> deadline;
  if (limit) deadline = Clock::now() + *limit;
  const int status = watch(child, reading.get(), deadline, end);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
}

}  // namespace longshore
