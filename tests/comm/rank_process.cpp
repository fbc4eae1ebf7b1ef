#include "tests/comm/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/world/world.h"

namespace longshore {
namespace {

// Runs one step: gathers and reduces three units, then adds a scalar.
void run_step(Communicator& all, std::vector<float>& values, std::vector<std::byte>& scratch) {
  for (int32_t unit = 0; unit < 3; ++unit) {
    Completion gather =
        all.all_gather({std::as_writable_bytes(std::span(values))}, {"parameters", UnitId(unit)});
    all.reduce_scatter({values}, DType::kF32, scratch, {"gradients", UnitId(unit)}).wait();
    gather.wait();
  }
  double norm = 1;
  all.all_reduce(std::span(&norm, 1), {"norm", {}}).wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

int run_world(const RankInfo& info, const WorldOptions& options, const std::string& behaviour) {
  const auto world = World::connect(info, options);
  std::vector<float> values(static_cast<size_t>(60'000 * info.size));
  std::vector<std::byte> scratch(
      static_cast<size_t>(reduce_scratch_bytes(60'000 * info.size, DType::kF32, info.size)));
  run_step(world->all(), values, scratch);
  log_info("ready");
  if (behaviour == "fail" || (behaviour == "fail-1" && info.rank == 1)) {
    world->report_failure("the data is damaged");
    throw DataError("the data is damaged");
  }
  if (behaviour == "once") return 0;
  if (behaviour == "die" && info.rank == 1) ::raise(SIGKILL);
  for (int64_t step = 1;; ++step) {
    if (behaviour == "stuck") ::pause();
    if (behaviour == "count") log_info("step " + std::to_string(step));
    run_step(world->all(), values, scratch);
  }
}

int run_caught(const RankInfo& info, std::chrono::milliseconds timeout,
               const std::string& behaviour) {
  WorldOptions options;
  options.timeout = timeout;
  options.heartbeat = std::chrono::milliseconds(200);
  options.grace = std::chrono::seconds(2);
  try {
    return run_world(info, options, behaviour);
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace

int run_as_launched(const std::vector<std::string>& arguments) {
  signal(SIGPIPE, SIG_IGN);
  const RankInfo info = discover_ranks();
  if (arguments.at(1) == kUnmet) {
    write_file_durably(arguments.at(2) + "/" + std::to_string(info.rank),
                       std::to_string(::getpid()));
    std::this_thread::sleep_for(std::chrono::minutes(1));
    return 0;
  }
  log_info(info.text());
  return run_caught(info, std::chrono::seconds(60), arguments.at(1));
}

int run_as_rank(const std::vector<std::string>& arguments) {
  // Gloo writes to a rank that is gone; the program ignores the signal too (signal_flag.h).
  signal(SIGPIPE, SIG_IGN);
  RankInfo info;
  info.rank = std::stoi(arguments.at(1));
  info.size = info.local_size = std::stoi(arguments.at(2));
  info.local_rank = info.rank;
  info.launcher = "launch";
  info.store_host = "127.0.0.1";
  info.store_port = static_cast<uint16_t>(std::stoi(arguments.at(3)));
  info.agent_store = arguments.at(4) == "1";
  return run_caught(info, std::chrono::milliseconds(std::stoll(arguments.at(5))), arguments.at(6));
}

RankProcess::RankProcess(const RankProcessOptions& options) : options_(options) {
  std::vector<std::string> arguments = {"test_comm",
                                        kRankMode,
                                        std::to_string(options.rank),
                                        std::to_string(options.size),
                                        std::to_string(options.port),
                                        options.agent_store ? "1" : "0",
                                        std::to_string(options.timeout_ms),
                                        options.behaviour};
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options.output.c_str(),
                                   O_CREAT | O_TRUNC | O_WRONLY, 0644);
  const int failed =
      ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw IoError("start", "a rank", failed);
}

RankProcess::~RankProcess() {
  if (ended_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool RankProcess::wait_until_ready(std::chrono::seconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (words().find("ready") == std::string::npos) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

void RankProcess::send(int signal) const {
  ::kill(pid_, signal);
}

std::optional<int> RankProcess::wait_for_end(std::chrono::steady_clock::time_point limit) {
  while (!ended_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (std::chrono::steady_clock::now() > limit) {
      return std::nullopt;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  return ended_;
}

std::string RankProcess::words() const {
  std::ifstream file(options_.output);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace longshore
