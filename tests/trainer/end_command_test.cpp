// run.on_end: what the command is told, and that its failures are warnings.
#include "trainer/run/end_command.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

// Returns what a run's end prints.
std::string printed(const RunSection& run, const RunEnd& end) {
  testing::internal::CaptureStderr();
  run_end_command(run, end);
  return testing::internal::GetCapturedStderr();
}

RunSection with_script(const TemporaryDirectory& directory, const std::string& script) {
  return {.dir = directory.path() + "/run", .on_end = {"sh", "-c", script, "on_end"}};
}

// Goal: the command gets directory, exit code and export after its own arguments, and no secret of
// the run.
TEST(EndCommand, IsToldOfTheRunAndOfNoSecret) {
  const TemporaryDirectory directory;
  ::setenv("LONGSHORE_SECRET", "hidden", 1);
  ::setenv("LONGSHORE_OTHER", "shown", 1);
  const RunSection run =
      with_script(directory, "echo \"$1|$2|$3|$#|${LONGSHORE_SECRET-none}|$LONGSHORE_OTHER\"");
  const std::string done = printed(run, {.exit_code = 0, .exported = directory.path() + "/hf"});
  const std::string failed = printed(run, {.exit_code = 143, .message = "stopped by SIGTERM"});
  ::unsetenv("LONGSHORE_SECRET");
  ::unsetenv("LONGSHORE_OTHER");
  const std::string& path = directory.path();
  EXPECT_NE(done.find(path + "/run|0|" + path + "/hf|3|none|shown"), std::string::npos) << done;
  EXPECT_EQ(done.find("warning"), std::string::npos) << done;
  EXPECT_NE(failed.find(path + "/run|143||3|none|shown"), std::string::npos) << failed;
  EXPECT_NE(failed.find("stopped by SIGTERM"), std::string::npos) << failed;
}

// Goal: a command that fails, hangs or does not exist is a warning that says so.
TEST(EndCommand, WarnsOfItsFailures) {
  const TemporaryDirectory directory;
  const std::string failed = printed(with_script(directory, "echo reason; exit 3"), {});
  EXPECT_NE(failed.find("run.on_end: it ended with exit code 3; the run is not affected"),
            std::string::npos)
      << failed;
  EXPECT_NE(failed.find("reason"), std::string::npos) << failed;
  RunSection hanging = with_script(directory, "exec sleep 1000");
  hanging.on_end_limit_ms = 200;
  const std::string late = printed(hanging, {});
  EXPECT_NE(late.find("run.on_end: it did not end in time"), std::string::npos) << late;
  const std::string absent = printed({.dir = "run", .on_end = {"/nowhere/program"}}, {});
  EXPECT_NE(absent.find("run.on_end: it could not be started: No such file"), std::string::npos)
      << absent;
  EXPECT_EQ(printed({.dir = "run"}, {}), "");
}

}  // namespace
}  // namespace longshore
