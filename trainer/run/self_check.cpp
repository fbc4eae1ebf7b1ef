#include "trainer/run/self_check.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/own_file.h"
#include "base/printable.h"
#include "device/cuda_driver.h"
#include "trainer/run/run_environment.h"

extern char** environ;

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostOutput = 8192;

struct Ended {
  bool in_time = false;
  int status = 0;
  std::string output;  // its end
};

// What the child prints until it closes its output or the time is over.
bool read_until(int fd, Clock::time_point end, std::string& output) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    // HOST WAIT: nothing may be trained before the answer.
    if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    std::array<char, 4096> part{};
    const ssize_t bytes = ::read(fd, part.data(), part.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    output.append(part.data(), static_cast<size_t>(bytes));
    if (output.size() > kMostOutput) output.erase(0, output.size() - kMostOutput);
  }
}

Ended run_child(const SelfCheck& check) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw IoError(std::string("a pipe for the GPU's self-check: ") + std::strerror(errno));
  }
  const UniqueFd reading(ends[0], "pipe");
  UniqueFd writing(ends[1], "pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDERR_FILENO);
  std::vector<std::string> words = check.command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, arguments.front(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw GpuError(std::string("the GPU's self-check cannot be started: ") + std::strerror(failed));
  }
  writing.reset();
  Ended ended;
  ended.in_time = read_until(reading.get(), Clock::now() + check.limit, ended.output);
  if (!ended.in_time) ::kill(child, SIGKILL);
  while (::waitpid(child, &ended.status, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

std::string how_it_ended(const SelfCheck& check, const Ended& ended) {
  if (!ended.in_time) {
    return "it did not end within " + std::to_string(check.limit.count() / 1000) + " s";
  }
  if (WIFSIGNALED(ended.status)) {
    return std::string("it crashed: ") + ::strsignal(WTERMSIG(ended.status));
  }
  return "it ended with exit code " + std::to_string(WEXITSTATUS(ended.status));
}

std::string memory_file(const SelfCheck& check) {
  return check.directory + "/" + hash_text(hash64(check.identity));
}

bool passed_before(const SelfCheck& check) {
  std::error_code ignored;
  if (!std::filesystem::exists(memory_file(check), ignored)) return false;
  return read_own_file(memory_file(check), kMiB) == check.identity;
}

}  // namespace

SelfCheck self_check_of(const CudaDevice& gpu, int number, const std::string& cache) {
  return {.command = {"/proc/self/exe", "gpu-check", "--gpu", std::to_string(number)},
          .directory = cache + "/gpu",
          .identity = gpu.name + "\ncompute " + std::to_string(gpu.compute_major) + "." +
                      std::to_string(gpu.compute_minor) + "\nmemory " +
                      std::to_string(gpu.memory_bytes) + "\ndriver " + cuda_driver_version() +
                      "\nLibTorch " TORCH_VERSION "\nbuild " + build_id() + "\n"};
}

void require_sound_gpu(const SelfCheck& check) {
  if (passed_before(check)) return;
  log_info("the first run on this GPU and driver: comparing it with the CPU");
  const Ended ended = run_child(check);
  if (ended.in_time && WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0) {
    make_directories(check.directory);
    replace_file(memory_file(check), check.identity);
    return;
  }
  std::string said;
  for (size_t begin = 0; begin < ended.output.size();) {
    const size_t end = std::min(ended.output.find('\n', begin), ended.output.size());
    said += "\n  " + printable(ended.output.substr(begin, end - begin));
    begin = end + 1;
  }
  throw GpuError("device.kind: the GPU's self-check failed, " + how_it_ended(check, ended) + said +
                 "\nNothing was trained. Please report the lines above with the output of "
                 "`longshore version` and `nvidia-smi`; device.kind = \"cpu\" trains on the CPU");
}

}  // namespace longshore
