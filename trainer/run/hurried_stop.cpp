#include "trainer/run/hurried_stop.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>

namespace longshore {
namespace {

constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::milliseconds kPatience{600};

constexpr const char* kAnnouncement = "\nstopping: prepared data is kept\n";

void watch(const std::stop_token& done, const SignalFlag& signals) {
  std::mutex mutex;
  std::condition_variable_any woken;
  std::unique_lock<std::mutex> lock(mutex);
  const auto never = [] { return false; };
  // HOST WAIT: signals are flags that are polled.
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

HurriedStop::HurriedStop(const SignalFlag& signals)
    : announcement_(kAnnouncement),
      thread_([&signals](const std::stop_token& done) { watch(done, signals); }) {}

}  // namespace longshore
