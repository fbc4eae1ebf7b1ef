// Ended: the exit code and output of a command line that ran in this process. The test's thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "trainer/commands/command_line.h"

namespace longshore {

struct Ended {
  int exit_code = 0;
  std::string out;
  std::string err;
};

inline Ended run_command(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ended ended;
  ended.exit_code = run_command_line(arguments);
  std::fflush(stdout);
  ended.out = testing::internal::GetCapturedStdout();
  ended.err = testing::internal::GetCapturedStderr();
  return ended;
}

}  // namespace longshore
