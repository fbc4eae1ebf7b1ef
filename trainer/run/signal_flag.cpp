#include "trainer/run/signal_flag.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/log.h"

namespace longshore {
namespace {

// Signal handlers run on any thread and may use only lock-free atomics.
std::atomic<int> g_stop_signal{0};
std::atomic<int> g_interrupts{0};
std::atomic<bool> g_save_requested{false};
std::atomic<bool> g_installed{false};
std::atomic<bool> g_announces{false};
constexpr const char* kStepAnnouncement =
    "\nstopping: this step is finished, then the run is saved\n"
    "(a second Ctrl-C ends it at once, without a save)\n";
std::atomic<const char*> g_announcement{kStepAnnouncement};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

// The text that a second interrupt writes, and its file. The length is 0 while either changes.
std::array<char, 4096> g_last_words;
std::array<char, 4096> g_last_words_path;
std::atomic<size_t> g_last_words_bytes{0};

// Ignores failures, because a handler cannot report them.
void put(int fd, const char* text, size_t bytes) {
  [[maybe_unused]] const ssize_t written = ::write(fd, text, bytes);
}

void say(std::string_view text) {
  put(STDERR_FILENO, text.data(), text.size());
}

void exit_at_once() {
  say("\ninterrupted twice: ending at once, nothing more is saved\n");
  const size_t bytes = g_last_words_bytes;
  const int fd =
      bytes == 0 ? -1 : ::open(g_last_words_path.data(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat status{};
  const bool own = fd >= 0 && ::fstat(fd, &status) == 0 && status.st_nlink == 1;
  if (own && ::ftruncate(fd, 0) == 0) put(fd, g_last_words.data(), bytes);
  ::_exit(static_cast<int>(ExitCode::kInterrupted));
}

extern "C" void on_signal(int signal) {
  const int error_number = errno;
  if (signal == SIGUSR2) {
    g_save_requested = true;
  } else {
    if (signal == SIGINT && ++g_interrupts >= 2) exit_at_once();
    int none = 0;
    const bool first = g_stop_signal.compare_exchange_strong(none, signal);
    if (first && g_announces) say(g_announcement.load());
  }
  errno = error_number;
}

constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::milliseconds kPatience{600};

constexpr const char* kAnnouncement = "\nstopping: prepared data is kept\n";

void watch(const std::stop_token& done, const SignalFlag& signals) {
  std::mutex mutex;
  std::condition_variable_any woken;
  std::unique_lock<std::mutex> lock(mutex);
  const auto never = [] { return false; };
  // HOST WAIT: the thread polls the signal flags.
  while (!done.stop_requested() && !signals.stop_requested()) {
    woken.wait_for(lock, done, kPoll, never);
  }
  woken.wait_for(lock, done, kPatience, never);
  if (done.stop_requested()) return;
  constexpr std::string_view kText = "stopped by a signal; the same command resumes from here\n";
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(signals.stop_exit_code());
}

}  // namespace

OtherAnnouncement::OtherAnnouncement(const char* text) : former_(g_announcement.exchange(text)) {}

OtherAnnouncement::~OtherAnnouncement() {
  g_announcement = former_;
}

std::string_view SignalFlag::announcement() {
  return g_announcement.load();
}

SignalFlag::SignalFlag(std::string save_file, Announce announce)
    : save_file_(std::move(save_file)) {
  LONGSHORE_CHECK(!g_installed.exchange(true)) << "signal handlers are installed already";
  g_stop_signal = 0;
  g_interrupts = 0;
  g_save_requested = false;
  g_announces = announce == Announce::kYes;
  g_last_words_bytes = 0;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}) {
    struct sigaction action{};
    // A closed output pipe does not end the run.
    action.sa_handler = signal == SIGPIPE ? SIG_IGN : on_signal;
    // Reads and writes continue after the handler.
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    Former former{.signal = signal};
    if (::sigaction(signal, &action, &former.action) != 0) {
      throw IoError("install the handler of", strsignal(signal), errno);
    }
    former_.push_back(former);
    // Under nohup SIGHUP stays ignored.
    if (signal == SIGHUP && former.action.sa_handler == SIG_IGN) {
      ::sigaction(signal, &former.action, nullptr);
    }
  }
}

SignalFlag::~SignalFlag() {
  for (const Former& former : former_) ::sigaction(former.signal, &former.action, nullptr);
  g_installed = false;
}

void SignalFlag::set_last_words(const std::string& path, const std::string& text) {
  g_last_words_bytes = 0;
  if (path.size() >= g_last_words_path.size() || text.size() > g_last_words.size()) return;
  std::ranges::copy(path, g_last_words_path.begin());
  g_last_words_path[path.size()] = '\0';
  std::ranges::copy(text, g_last_words.begin());
  g_last_words_bytes = text.size();
}

std::string SignalFlag::stop_name() const {
  const int signal = stop_signal();
  return signal == 0 ? "" : std::string("SIG") + ::sigabbrev_np(signal);
}

std::string SignalFlag::stop_text() const {
  return "stopped by " + (stop_requested() ? stop_name() : "a signal to another rank");
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
    // A remaining file would request a save after every step.
    log_warning("cannot remove " + save_file_ + ": " + std::strerror(errno) +
                "; it is ignored from now on");
    save_file_.clear();
  }
  return true;
}

HurriedStop::HurriedStop(const SignalFlag& signals)
    : announcement_(kAnnouncement),
      thread_([&signals](const std::stop_token& done) { watch(done, signals); }) {}

}  // namespace longshore
