#include "trainer/run/tracker_process.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/texts.h"
#include "comm/ranks/rank_info.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMostForLastLines{60};

// Returns the program that follows a run: that of the wheel (<prefix>/lib/python3.x/site-packages/
// longshore/bin/longshore), of the source tree (build/<preset>/longshore), or that in PATH.
std::string follower_program() {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path folder = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (const char* place :
       {"../../../../../bin/longshore-follow", "../../scripts/follow_metrics"}) {
    const fs::path program = (folder / place).lexically_normal();
    if (fs::is_regular_file(program, failed)) return program.string();
  }
  return "longshore-follow";
}

}  // namespace

TrackerProcess::TrackerProcess(const std::string& directory, const std::string& project)
    : thread_([this, directory, project] { follow(directory, project); }) {}

TrackerProcess::~TrackerProcess() {
  deadline_ = (Clock::now() + kMostForLastLines).time_since_epoch().count();
  // HOST WAIT: the process sends what the run wrote last.
  thread_.join();
}

bool TrackerProcess::gives_up() const {
  const int64_t deadline = deadline_;
  return deadline != 0 && Clock::now().time_since_epoch().count() >= deadline;
}

void TrackerProcess::follow(const std::string& directory, const std::string& project) {
  const std::vector<std::string> command = {follower_program(), directory, "--to", "wandb",
                                            "--project=" + project};
  std::string problem;
  try {
    const ChildEnd end =
        run_child(command, {}, launcher_variable_names(), [this] { return gives_up(); });
    if (end.good()) return log_debug("log.wandb: " + end.output);
    problem = end.text() + (end.output.empty() ? "" : ": " + std::string(trimmed(end.output)));
  } catch (const Error& error) {
    problem = error.what();
  }
  log_warning("log.wandb: " + problem + "; the run is not affected, and this sends its record: " +
              joined(command, " ", shell_quoted));
}

}  // namespace longshore
