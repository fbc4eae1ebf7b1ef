#include "comm/ranks/launcher.h"

#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "base/errors.h"
#include "base/log.h"
#include "base/texts.h"
#include "comm/ranks/rank_info.h"
#include "comm/store/store.h"
#include "comm/store/store_secret.h"
#include "comm/store/store_server.h"
#include "device/cuda_runtime.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks normally notice a failure and exit by themselves; these limits are for ranks that do not.
constexpr std::chrono::seconds kOwnTime(12);
constexpr std::chrono::seconds kTerminateTime(5);
constexpr int kNotStarted = 127;  // the exit code of a program that cannot be executed
constexpr const char* kLoopback = "127.0.0.1";
// The shared memory that NCCL needs for each rank if GPUs cannot read each other's memory.
constexpr Bytes kSharedMemory = 40 * kMiB;
constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

StoreAddress parse_rendezvous(const LaunchOptions& options) {
  if (options.rendezvous.empty()) {
    if (options.nodes == 1) return {kLoopback, 0};
    throw ConfigError("launch: several nodes need --rendezvous HOST:PORT, the same on all of them");
  }
  StoreAddress address;
  if (!parse_store_address(options.rendezvous, address)) {
    throw ConfigError("launch: --rendezvous is \"" + printable(options.rendezvous, 400) +
                      "\": must be HOST:PORT, the address of node 0");
  }
  // A run of one node listens on loopback only.
  if (options.nodes == 1) address.host = kLoopback;
  return address;
}

std::string secret_for(const LaunchOptions& options) {
  if (!options.secret_file.empty()) {
    return read_store_secret(options.secret_file, "launch: --secret-file");
  }
  if (options.nodes == 1) return make_store_secret();
  log_warning(
      "launch: the nodes connect without a secret: any process that reaches the store can read the "
      "run file and end the run; give all nodes the same --secret-file (SECURITY.md)");
  return "";
}

void check(const LaunchOptions& options) {
  if (options.ranks < 1 || options.nodes < 1) {
    throw ConfigError("launch: --nproc and --nnodes must be at least 1");
  }
  if (options.node < 0 || options.node >= options.nodes) {
    throw ConfigError("launch: --node-rank is " + std::to_string(options.node) +
                      ": must be from 0 to " + std::to_string(options.nodes - 1));
  }
  if (options.command.empty()) {
    throw ConfigError("launch: no command; write: longshore launch --nproc 2 -- train run.toml");
  }
}

// Blocks the signals so that wait_for_signal() receives them, and restores the former mask.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int signal : kForwarded) sigaddset(&set_, signal);
    sigaddset(&set_, SIGCHLD);
    const int failed = ::pthread_sigmask(SIG_BLOCK, &set_, &former_);
    if (failed != 0) throw IoError("block", "signals", failed);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &former_, nullptr); }

  const sigset_t& former() const { return former_; }

  // Returns 0 if no signal came within 0.1 s.
  int wait_for_signal() const {
    const timespec period{.tv_sec = 0, .tv_nsec = 100'000'000};
    return std::max(0, ::sigtimedwait(&set_, nullptr, &period));
  }

 private:
  sigset_t set_{};
  sigset_t former_{};
};

constexpr std::string_view kVisibleGpus = "CUDA_VISIBLE_DEVICES";

// Returns the value from this process's environment.
std::optional<std::string> own_visible_gpus() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.substr(0, text.find('=')) != kVisibleGpus) continue;
    return std::string(text.substr(std::min(text.size(), kVisibleGpus.size() + 1)));
  }
  return std::nullopt;
}

// Returns a rank's environment: this process's, with the launcher's variables replaced. `gpus` is
// the number of GPUs that this process sees.
std::vector<std::string> environment_of(const LaunchOptions& options, const StoreAddress& store,
                                        const std::string& secret, size_t gpus,
                                        int32_t local_rank) {
  std::vector<std::pair<std::string, std::string>> added = {
      {"LONGSHORE_LAUNCH", "launch"},
      {"LONGSHORE_SECRET", secret},
      {"RANK", std::to_string(options.node * options.ranks + local_rank)},
      {"WORLD_SIZE", std::to_string(options.ranks * options.nodes)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
      {"GROUP_RANK", std::to_string(options.node)},
      {"GROUP_WORLD_SIZE", std::to_string(options.nodes)},
      {"MASTER_ADDR", store.host},
      {"MASTER_PORT", std::to_string(store.port)}};
  if (const auto gpu = visible_gpu(own_visible_gpus(), gpus, options.ranks, local_rank)) {
    added.emplace_back(kVisibleGpus, *gpu);
  }
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(added.begin(), added.end(),
                                      [&](const auto& variable) { return variable.first == name; });
    if (!replaced && !name.starts_with("TORCHELASTIC_")) all.emplace_back(text);
  }
  for (const auto& [name, value] : added) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the child: becomes the rank. It makes system calls only, because other threads of the
// launcher may have held locks at the fork.
[[noreturn]] void become(char* const* arguments, char* const* environment, const sigset_t& mask,
                         pid_t launcher) {
  // Ctrl-C reaches each rank only once, through the launcher.
  ::setpgid(0, 0);
  // This signal ends a rank with its launcher, also before it has reached the launcher's store. A
  // launcher that ended before this line is no longer the parent.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (::getppid() == launcher) ::execve("/proc/self/exe", arguments, environment);
  ::_exit(kNotStarted);
}

// The calling thread must live as long as the ranks.
pid_t start_rank(const std::vector<std::string>& command, std::vector<std::string> environment,
                 const sigset_t& mask) {
  std::vector<std::string> texts = {"longshore"};
  texts.insert(texts.end(), command.begin(), command.end());
  const std::vector<char*> arguments = pointers_to(texts), variables = pointers_to(environment);
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(arguments.data(), variables.data(), mask, launcher);
  if (pid < 0) throw IoError("start", "a rank", errno);
  return pid;
}

// The ranks of this node, from their start to the end of the last one.
class Ranks {
 public:
  explicit Ranks(int32_t first_rank) : first_rank_(first_rank) {}
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() { send(SIGKILL); }

  void add(pid_t pid) { running_.push_back({first_rank_++, pid}); }
  bool running() const { return !running_.empty(); }
  int exit_code() const { return exit_code_; }

  void send(int signal) const {
    for (const Process& process : running_) ::kill(process.pid, signal);
  }

  // Removes the processes that have ended, and records their status.
  void look() {
    std::erase_if(running_, [this](const Process& process) {
      int status = 0;
      const pid_t ended = ::waitpid(process.pid, &status, WNOHANG);
      if (ended == 0 || (ended < 0 && errno == EINTR)) return false;
      note(process, status);
      return true;
    });
  }

  // After a failure: first asks the remaining ranks to end, then kills them.
  void press() {
    if (!failure_) return;
    const auto time = Clock::now() - *failure_;
    if (time > kOwnTime + kTerminateTime) {
      send(SIGKILL);
    } else if (time > kOwnTime && !asked_) {
      asked_ = true;
      log_warning("launch: ranks still run " + std::to_string(kOwnTime.count()) +
                  " s after the failure: ending them");
      send(SIGTERM);
    }
  }

 private:
  struct Process {
    int32_t rank = 0;
    pid_t pid = 0;
  };

  void note(const Process& process, int status) {
    const bool by_signal = WIFSIGNALED(status);
    const int code = by_signal ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (code == 0) return;
    const std::string how = by_signal ? std::string("was ended by signal ") +
                                            std::to_string(WTERMSIG(status)) + " (" +
                                            ::strsignal(WTERMSIG(status)) + ")"
                                      : "ended with exit code " + std::to_string(code);
    log_warning("launch: rank " + std::to_string(process.rank) + " (process " +
                std::to_string(process.pid) + ") " + how);
    if (!failure_) {
      failure_ = Clock::now();
      exit_code_ = code;
    } else if (exit_code_ == static_cast<int>(ExitCode::kDistributed) && !asked_) {
      // This exit code only says that another rank failed; that may be this one.
      exit_code_ = code;
    }
  }

  int32_t first_rank_;
  std::vector<Process> running_;
  std::optional<Clock::time_point> failure_;
  bool asked_ = false;
  int exit_code_ = 0;
};

// Only this file reads the launchers' variables. Each call spells out its name, so that
// tests/tidy/tidy_test.cpp can list them.

struct Variable {
  const char* name;
  const char* value;
};

}  // namespace

std::optional<std::string> visible_gpu(const std::optional<std::string>& own, size_t gpus,
                                       int32_t ranks, int32_t local_rank) {
  if (gpus < static_cast<size_t>(ranks)) return std::nullopt;
  if (!own) return std::to_string(local_rank);
  std::string_view rest = *own;
  for (int32_t i = 0; i < local_rank; ++i) {
    const size_t comma = rest.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(comma + 1);
  }
  return std::string(rest.substr(0, rest.find(',')));
}

Bytes free_shared_memory(const std::string& path) {
  struct statvfs room{};
  if (::statvfs(path.c_str(), &room) != 0) return 0;
  return static_cast<Bytes>(room.f_bavail) * static_cast<Bytes>(room.f_frsize);
}

std::string lack_of_shared_memory(Bytes room, size_t ranks) {
  const Bytes needed = kSharedMemory * static_cast<Bytes>(ranks);
  if (ranks < 2 || room >= needed) return "";
  return "/dev/shm has " + format_bytes(room) + " free; NCCL may need " + format_bytes(needed) +
         " of it for " + std::to_string(ranks) + " GPUs";
}

int launch_ranks(const LaunchOptions& options) {
  check(options);
  StoreAddress store = parse_rendezvous(options);
  const std::string secret = secret_for(options);
  // The mask is set before any thread exists, so that all threads inherit it.
  const BlockedSignals signals;
  std::unique_ptr<StoreServer> server;
  if (options.node == 0) {
    server = std::make_unique<StoreServer>(StoreServerOptions{
        .port = store.port, .address = options.nodes == 1 ? kLoopback : "", .secret = secret});
    store.port = server->port();
  }
  const int32_t first = options.node * options.ranks;
  log_info("launch: ranks " + std::to_string(first) + " to " +
           std::to_string(first + options.ranks - 1) + " of " +
           std::to_string(options.ranks * options.nodes) + " on node " +
           std::to_string(options.node) + " of " + std::to_string(options.nodes) + ", store at " +
           store.text());
  const size_t gpus = cuda_devices().size();
  const auto here = static_cast<size_t>(options.ranks);
  if (const std::string lack = lack_of_shared_memory(free_shared_memory(), here);
      gpus >= here && !lack.empty()) {
    log_warning("launch: " + lack + "; " + kMoreSharedMemory);
  }
  Ranks ranks(first);
  for (int32_t local = 0; local < options.ranks; ++local) {
    ranks.add(start_rank(options.command, environment_of(options, store, secret, gpus, local),
                         signals.former()));
  }
  while (ranks.running()) {
    const int signal = signals.wait_for_signal();
    if (signal != 0 && signal != SIGCHLD) ranks.send(signal);
    ranks.look();
    ranks.press();
  }
  if (server) log_debug("launch: the store held at most " + server->most_used().text());
  return ranks.exit_code();
}

std::map<std::string, std::string> launcher_variables() {
  const Variable variables[] = {
      {"RANK", std::getenv("RANK")},
      {"WORLD_SIZE", std::getenv("WORLD_SIZE")},
      {"LOCAL_RANK", std::getenv("LOCAL_RANK")},
      {"LOCAL_WORLD_SIZE", std::getenv("LOCAL_WORLD_SIZE")},
      {"GROUP_RANK", std::getenv("GROUP_RANK")},
      {"GROUP_WORLD_SIZE", std::getenv("GROUP_WORLD_SIZE")},
      {"MASTER_ADDR", std::getenv("MASTER_ADDR")},
      {"MASTER_PORT", std::getenv("MASTER_PORT")},
      {"TORCHELASTIC_USE_AGENT_STORE", std::getenv("TORCHELASTIC_USE_AGENT_STORE")},
      {"TORCHELASTIC_RESTART_COUNT", std::getenv("TORCHELASTIC_RESTART_COUNT")},
      {"TORCHELASTIC_RUN_ID", std::getenv("TORCHELASTIC_RUN_ID")},
      {"LONGSHORE_LAUNCH", std::getenv("LONGSHORE_LAUNCH")},
      {"LONGSHORE_SECRET", std::getenv("LONGSHORE_SECRET")},
      {"SLURM_PROCID", std::getenv("SLURM_PROCID")},
      {"SLURM_NTASKS", std::getenv("SLURM_NTASKS")},
      {"SLURM_LOCALID", std::getenv("SLURM_LOCALID")},
      {"SLURM_NODEID", std::getenv("SLURM_NODEID")},
      {"SLURM_NNODES", std::getenv("SLURM_NNODES")},
      {"SLURM_JOB_ID", std::getenv("SLURM_JOB_ID")},
      {"SLURM_STEP_ID", std::getenv("SLURM_STEP_ID")},
      {"SLURM_STEP_NODELIST", std::getenv("SLURM_STEP_NODELIST")},
      {"SLURM_NODELIST", std::getenv("SLURM_NODELIST")},
      {"SLURM_JOB_NODELIST", std::getenv("SLURM_JOB_NODELIST")},
      {"SLURM_RESTART_COUNT", std::getenv("SLURM_RESTART_COUNT")},
      {"OMPI_COMM_WORLD_RANK", std::getenv("OMPI_COMM_WORLD_RANK")},
      {"OMPI_COMM_WORLD_SIZE", std::getenv("OMPI_COMM_WORLD_SIZE")},
      {"OMPI_COMM_WORLD_LOCAL_RANK", std::getenv("OMPI_COMM_WORLD_LOCAL_RANK")},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE")},
      {"PMI_RANK", std::getenv("PMI_RANK")},
      {"PMI_SIZE", std::getenv("PMI_SIZE")},
      {"PMI_LOCAL_RANK", std::getenv("PMI_LOCAL_RANK")},
      {"PMI_LOCAL_SIZE", std::getenv("PMI_LOCAL_SIZE")},
  };
  std::map<std::string, std::string> found;
  for (const Variable& variable : variables) {
    if (variable.value != nullptr) found.emplace(variable.name, variable.value);
  }
  return found;
}

std::set<std::string, std::less<>> launcher_variable_names() {
  std::set<std::string, std::less<>> names;
  for (const auto& [name, value] : launcher_variables()) names.insert(name);
  return names;
}

RankInfo discover_ranks() {
  return discover_ranks(launcher_variables());
}

}  // namespace longshore
