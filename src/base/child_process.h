// Runs another program to its end and keeps the end of its output, and quotes arguments for a
// shell. Any thread; the caller blocks. The program leads its own process group; processes that it
// started in that group end with it. The program ends when the calling thread ends, so Ctrl-C or a
// kill of this process ends it too.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace longshore {

struct ChildEnd {
  // The reason why the program did not start; the other members then keep their defaults.
  std::string not_started;
  bool in_time = true;  // false: it was killed at the limit
  int exit_code = 0;
  int signal = 0;      // the signal that ended it; 0: it exited
  std::string output;  // the last 8 KiB of its stdout and stderr, in order

  bool good() const { return not_started.empty() && in_time && signal == 0 && exit_code == 0; }
  // Describes the end: "it ended with exit code 3", and so on.
  std::string text() const;
};

// Runs arguments[0], searched in PATH if it has no slash, with an empty stdin. Without a limit it
// waits as long as the program runs. The program gets this process's environment without the
// variables of the names `hidden`. It is killed, as at the limit, once `give_up` returns true,
// which is asked every few milliseconds. Throws IoError when no pipe can be made.
ChildEnd run_child(std::vector<std::string> arguments,
                   std::optional<std::chrono::milliseconds> limit = std::nullopt,
                   const std::set<std::string, std::less<>>& hidden = {},
                   const std::function<bool()>& give_up = {});

// Quotes one argument for a shell, where it needs quotes.
std::string shell_quoted(const std::string& argument);

}  // namespace longshore
