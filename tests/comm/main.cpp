// GoogleTest's main, and that of the ranks that tests start as processes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/comm/rank_process.h"

int main(int argc, char** argv) {
  // As trainer/main.cpp has it: a name server that does not answer costs a second, not five.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:2", 0);
  if (argc > 1 && std::string(argv[1]) == longshore::kRankMode) {
    return longshore::run_as_rank(std::vector<std::string>(argv + 1, argv + argc));
  }
  if (argc > 1 && std::string(argv[1]) == longshore::kLaunchedMode) {
    return longshore::run_as_launched(std::vector<std::string>(argv + 1, argv + argc));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
