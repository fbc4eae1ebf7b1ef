#include "trainer/run/end_command.h"

#include <chrono>
#include <filesystem>
#include <vector>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/texts.h"
#include "comm/ranks/rank_info.h"

namespace longshore {
namespace {

std::string absolute_path(const std::string& path) {
  std::error_code failed;
  const std::string absolute = std::filesystem::absolute(path, failed).string();
  return failed ? path : absolute;
}

}  // namespace

void run_end_command(const RunSection& run, const RunEnd& end) {
  if (run.on_end.empty()) return;
  std::vector<std::string> command = run.on_end;
  command.push_back(absolute_path(run.dir));
  command.push_back(std::to_string(end.exit_code));
  command.push_back(end.exported.empty() ? "" : absolute_path(end.exported));
  // The message of a failed run follows the command, which may take long.
  log_info("run.on_end: " + joined(command, " ", shell_quoted) +
           (end.message.empty() ? "" : ", since the run ended: " + end.message));
  try {
    const ChildEnd ended = run_child(command, std::chrono::milliseconds(run.on_end_limit_ms),
                                     launcher_variable_names());
    const std::string output = ended.output.empty() ? "" : ":\n" + ended.output;
    if (ended.good()) {
      if (!output.empty()) log_info("run.on_end" + output);
      return;
    }
    log_warning("run.on_end: " + ended.text() + "; the run is not affected" + output);
  } catch (const Error& error) {
    log_warning(std::string("run.on_end: ") + error.what() + "; the run is not affected");
  }
}

}  // namespace longshore
