#include <string>
#include <vector>

#include "trainer/command_line.h"

int main(int argc, char** argv) {
  return longshore::run_command_line(std::vector<std::string>(argv + 1, argv + argc));
}
