#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/errors.h"
#include "base/file.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMostOutput = 8192;
constexpr size_t kPipeBytes = size_t{64} << 10;  // capacity of a Linux pipe: one read empties it
// The interval between checks for the program's exit. The end of its output does not show it: the
// program may close its output early, or leave it open in a child.
constexpr milliseconds kLook{20};

// Reads the bytes in the pipe once, so that an endless writer cannot block the caller. Returns
// false when no more output can come.
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

// Returns whether the program ended; without WNOHANG it blocks until then. The program stays a
// zombie, so that its process group id stays valid.
bool has_ended(pid_t child, int flags) {
  for (;;) {
    siginfo_t found{};
    const int failed = ::waitid(P_PID, static_cast<id_t>(child), &found, WEXITED | WNOWAIT | flags);
    if (failed != 0 && errno == EINTR) continue;
    return failed != 0 || found.si_pid != 0;
  }
}

// Kills the program and its process group, and returns the program's waitpid status.
int end_group(pid_t child) {
  ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Collects output until the program ends or `late` returns true; returns its waitpid status.
int watch(pid_t child, int fd, const std::function<bool()>& late, ChildEnd& end) {
  pollfd reading{.fd = fd, .events = POLLIN, .revents = 0};
  while (!has_ended(child, WNOHANG)) {
    if (late()) {
      end.in_time = false;
      break;
    }
    // HOST WAIT: the caller needs the program's result.
    if (::poll(&reading, 1, static_cast<int>(kLook.count())) <= 0) continue;
    if (!read_some(fd, end.output)) reading.fd = -1;
  }
  const int status = end_group(child);
  read_some(fd, end.output);
  return status;
}

struct Pipe {
  explicit Pipe(const std::string& program) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw IoError("a pipe for " + program + ": " + std::strerror(errno));
    }
    reading = UniqueFd(ends[0], "pipe");
    writing = UniqueFd(ends[1], "pipe");
  }
  UniqueFd reading, writing;
};

// Runs in the child: executes the program or writes errno to `trouble`. It makes system calls only,
// because other threads of the parent may have held locks at the fork.
[[noreturn]] void become(char* const* argv, char* const* environment, int output, int trouble,
                         pid_t parent) {
  ::setpgid(0, 0);
  // Ctrl-C reaches only the parent's group; this signal ends the program with its parent.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (::getppid() == parent && ::dup2(nothing, STDIN_FILENO) >= 0 &&
      ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(output, STDERR_FILENO) >= 0) {
    ::execvpe(argv[0], argv, environment);
  }
  const int error = errno;
  static_cast<void>(!::write(trouble, &error, sizeof error));
  ::_exit(127);
}

// Returns this process's environment without the variables of these names, ended by a null.
std::vector<char*> environment_without(const std::set<std::string, std::less<>>& hidden) {
  std::vector<char*> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!hidden.contains(text.substr(0, text.find('=')))) variables.push_back(*entry);
  }
  variables.push_back(nullptr);
  return variables;
}

// Returns the program's process id; 0, with the reason in `not_started`, if it did not start.
pid_t start(std::vector<std::string>& arguments, const std::vector<char*>& environment,
            const Pipe& output, std::string& not_started) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Pipe trouble(arguments.front());
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    become(argv.data(), environment.data(), output.writing.get(), trouble.writing.get(), parent);
  }
  if (child < 0) {
    not_started = std::strerror(errno);
    return 0;
  }
  ::setpgid(child, child);  // both processes set the group: either may run first
  trouble.writing.reset();
  int error = 0;
  ssize_t bytes = 0;
  do {
    bytes = ::read(trouble.reading.get(), &error, sizeof error);  // returns when execvpe succeeds
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) return child;
  end_group(child);
  not_started = std::strerror(error);
  return 0;
}

}  // namespace

std::string ChildEnd::text() const {
  if (!not_started.empty()) return "it could not be started: " + not_started;
  if (!in_time) return "it did not end in time";
  if (signal != 0) return std::string("it crashed: ") + ::strsignal(signal);
  return "it ended with exit code " + std::to_string(exit_code);
}

ChildEnd run_child(std::vector<std::string> arguments, std::optional<milliseconds> limit,
                   const std::set<std::string, std::less<>>& hidden,
                   const std::function<bool()>& give_up) {
  Pipe output(arguments.front());
  ::fcntl(output.reading.get(), F_SETFL, O_NONBLOCK);
  ChildEnd end;
  const pid_t child = start(arguments, environment_without(hidden), output, end.not_started);
  output.writing.reset();
  if (child == 0) return end;
  std::optional<Clock::time_point> deadline;
  if (limit) deadline = Clock::now() + *limit;
  const auto late = [&] {
    return (deadline && Clock::now() >= *deadline) || (give_up && give_up());
  };
  const int status = watch(child, output.reading.get(), late, end);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
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
