#include "trainer/run/signal_flag.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/log.h"

namespace longshore {
namespace {

// A handler may touch only lock-free atomics, and it may run on any thread.
std::atomic<int> g_stop_signal{0};
std::atomic<int> g_interrupts{0};
std::atomic<bool> g_save_requested{false};
std::atomic<bool> g_installed{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void exit_at_once() {
  constexpr std::string_view kText = "\ninterrupted twice: exiting without a save\n";
  // Nothing can be done where even this fails.
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(128 + SIGINT);
}

extern "C" void on_signal(int signal) {
  const int error_number = errno;
  if (signal == SIGUSR2) {
    g_save_requested = true;
  } else {
    if (signal == SIGINT && ++g_interrupts >= 2) exit_at_once();
    int none = 0;
    g_stop_signal.compare_exchange_strong(none, signal);
  }
  errno = error_number;
}

}  // namespace

SignalFlag::SignalFlag(std::string save_file) : save_file_(std::move(save_file)) {
  LONGSHORE_CHECK(!g_installed.exchange(true)) << "signal handlers are installed already";
  g_stop_signal = 0;
  g_interrupts = 0;
  g_save_requested = false;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    struct sigaction action{};
    action.sa_handler = on_signal;
    // Reads and writes go on after the handler.
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    Former former{.signal = signal};
    if (::sigaction(signal, &action, &former.action) != 0) {
      throw IoError("install the handler of", strsignal(signal), errno);
    }
    former_.push_back(former);
  }
}

SignalFlag::~SignalFlag() {
  for (const Former& former : former_) ::sigaction(former.signal, &former.action, nullptr);
  g_installed = false;
}

int SignalFlag::stop_signal() const {
  return g_stop_signal;
}

bool SignalFlag::take_save_request() {
  const bool by_file = take_save_file();
  return g_save_requested.exchange(false) || by_file;
}

bool SignalFlag::take_save_file() {
  if (save_file_.empty() || ::access(save_file_.c_str(), F_OK) != 0) return false;
  if (::unlink(save_file_.c_str()) != 0 && errno != ENOENT) {
    // A file that stays would ask for a save after every step.
    log_warning("cannot remove " + save_file_ + ": " + std::strerror(errno) +
                "; it is ignored from now on");
    save_file_.clear();
  }
  return true;
}

}  // namespace longshore
