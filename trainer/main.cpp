#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "comm/collectives/nccl_communicator.h"
#include "trainer/commands/command_line.h"

namespace {

// A program that is started without standard streams would open a file of the run in their place,
// and messages for the terminal would be written into it.
void fill_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is this one.
    if (::open("/dev/null", O_RDWR) != fd) std::abort();
  }
}

// Whether a variable of the environment begins so. It calls no library: see wait_without_spinning.
bool begins(const char* variable, std::string_view with) {
  for (const char c : with) {
    if (*variable++ != c) return false;
  }
  return true;
}

// LibTorch's OpenMP threads spin at every barrier unless told otherwise. Another program that needs
// a core then stops the whole computation: while one compiler ran, training on two cores reached
// 120 tokens/s with spinning threads and 2700 with waiting ones. OpenMP reads the policy when it is
// loaded, so the program starts itself again with it. The loader calls this before it initialises
// any library, because LibTorch takes most of a short command's time for that, and would do it
// twice. No library may be used here but for the system call. If it fails the program continues
// without the setting.
void wait_without_spinning(int, char** argv, char** environment) {
  static constexpr std::string_view kName = "OMP_WAIT_POLICY=";
  static char wanted[] = "OMP_WAIT_POLICY=PASSIVE";
  static char* variables[8192];
  size_t count = 0;
  for (char** variable = environment; *variable != nullptr; ++variable) {
    if (begins(*variable, {wanted, sizeof(wanted)})) return;  // with the zero at its end
    if (begins(*variable, kName)) continue;
    if (count + 2 >= std::size(variables)) return;
    variables[count++] = *variable;
  }
  variables[count] = wanted;
  ::execve("/proc/self/exe", argv, variables);
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*before_libraries)(int, char**, char**) = wait_without_spinning;

// LibTorch's store, which torchrun's agent serves, looks up the names of its peers for its log. A
// name server that does not answer would stop the ranks for 5 s or more each time. Options that are
// already set stay.
void ask_name_servers_briefly() {
  ::setenv("RES_OPTIONS", "timeout:1 attempts:2", 0);
}

// Ranks cannot work without the store that their launcher serves, so they end when it ends in any
// way.
void end_with_the_launcher() {
  if (std::getenv("LONGSHORE_LAUNCH") != nullptr) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// CUDA gives a process's streams 8 queues of the hardware unless told otherwise before its first
// call, and streams that share one wait for each other: a copy would wait for a whole unit's
// kernels. A variable that is already set stays.
void give_streams_their_own_queues() {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

// A write past the limit of ulimit -f then fails with an error, which is reported, instead of
// ending the program without a message.
void outlive_file_limits() {
  ::signal(SIGXFSZ, SIG_IGN);
}

// After a distributed failure nothing is left to do, and destructors of LibTorch's static objects
// may wait for threads that wait for a peer that is gone.
int leave(int exit_code) {
  if (exit_code != static_cast<int>(longshore::ExitCode::kDistributed)) return exit_code;
  std::fflush(nullptr);
  ::_exit(exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  end_with_the_launcher();
  outlive_file_limits();
  ask_name_servers_briefly();
  give_streams_their_own_queues();
  longshore::fix_nccl_settings();
  return leave(longshore::run_command_line(std::vector<std::string>(argv + 1, argv + argc)));
}
