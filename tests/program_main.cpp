// The main function of test binaries that start runs in their own process: such a binary is also
// the program, because a run on a GPU starts /proc/self/exe again for its self-check.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainer/commands/command_line.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "check") {
    return longshore::run_command_line(std::vector<std::string>(argv + 1, argv + argc));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
