// main() of this test binary: GoogleTest's, or that of a rank which a test started as a process.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/comm/rank_process.h"

int main(int argc, char** argv) {
  // A name server that does not answer costs 1 second instead of 5, as in trainer/main.cpp.
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
