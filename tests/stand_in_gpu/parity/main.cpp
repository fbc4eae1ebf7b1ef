// The main program of stand_in_parity: a test binary that is also the program, for the child
// processes that a run starts of itself.
#include <gtest/gtest.h>

#include <string_view>

#include "trainer/commands/command_line.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "gpu-check") {
    return longshore::run_command_line(std::vector<std::string>(argv + 1, argv + argc));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
