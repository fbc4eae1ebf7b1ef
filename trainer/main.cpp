#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/command_line.h"

namespace {

// LibTorch's OpenMP threads spin at every barrier unless told otherwise. Whatever else wants a core
// then stops the whole computation: beside one compiler, training on two cores ran at 120 tokens/s
// spinning and 2700 waiting. OpenMP reads the policy when it is loaded, before main, so the program
// starts itself again with it. Where that fails it goes on as it is.
void wait_without_spinning(char** argv) {
  constexpr std::string_view kPolicy = "PASSIVE";
  const char* now = std::getenv("OMP_WAIT_POLICY");
  if (now != nullptr && now == kPolicy) return;
  if (setenv("OMP_WAIT_POLICY", kPolicy.data(), 1) == 0) execv("/proc/self/exe", argv);
}

// LibTorch's store looks up the names of whoever it talks to, for its log. A name server that does
// not answer would stop the ranks for 5 s or more each time; what is set already stays.
void ask_name_servers_briefly() {
  ::setenv("RES_OPTIONS", "timeout:1 attempts:2", 0);
}

}  // namespace

int main(int argc, char** argv) {
  ask_name_servers_briefly();
  wait_without_spinning(argv);
  return longshore::run_command_line(std::vector<std::string>(argv + 1, argv + argc));
}
