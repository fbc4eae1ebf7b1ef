// ChildProcess: another program, run to its end, with the end of its output kept. Any thread; the
// caller waits. The program leads a process group of its own, and what it started in that group
// ends with it. It ends with the thread that called, so Ctrl-C or a kill of this process ends it
// too.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace longshore {

struct ChildEnd {
  // Why it could not be started; then nothing else is said.
  std::string not_started;
  bool in_time = true;  // false: it was killed at the limit
  int exit_code = 0;
  int signal = 0;      // that ended it; 0: it ended by itself
  std::string output;  // the last 8 KiB of what it printed, errors included, in their order

  bool good() const { return not_started.empty() && in_time && signal == 0 && exit_code == 0; }
  // "it ended with exit code 3", and so on.
  std::string text() const;
};

// Runs arguments[0], found in PATH where it has no slash, with nothing to read. Without a limit it
// is waited for as long as it runs. IoError where there is no pipe left.
ChildEnd run_child(std::vector<std::string> arguments,
                   std::optional<std::chrono::milliseconds> limit = std::nullopt);

}  // namespace longshore
